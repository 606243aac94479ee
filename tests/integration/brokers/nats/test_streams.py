from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from headwater.brokers.nats import Link, NatsAccess, Publisher, StreamLimits, ensure_stream, stream_info
from headwater.brokers.nats.streams import ApiError
from headwater.errors import BrokerError
from tests.support.brokers.nats_messages import numbered, outgoing
from tests.support.servers.embedded import ConfiguredNats


@pytest.fixture
def absent(access, stream):
    """A stream that is not there yet."""
    stream.delete()
    return stream


def test_a_stream_that_is_missing_is_made_with_the_servers_own_defaults(link, absent):
    ensure_stream(link, absent.name, [absent.subject(">")], "Creek stream relating to it")
    config = absent.info().config
    assert config["description"] == "Creek stream relating to it"
    assert absent.info().subjects == (absent.subject(">"),)
    assert (config["retention"], config["storage"], config["discard"]) == ("limits", "file", "old")
    assert (config["max_age"], config["max_bytes"], config["max_msgs"], config["num_replicas"]) == (0, -1, -1, 1)
    assert config["duplicate_window"] == 120 * 10**9


def test_limits_that_are_given_are_applied_to_a_new_stream_and_to_an_old_one(link, absent):
    limits = StreamLimits(max_age=timedelta(days=1), max_bytes=10**6, max_msgs=1000, replicas=1, retention="limits")
    ensure_stream(link, absent.name, [absent.subject(">")], "", limits)
    assert (absent.info().config["max_age"], absent.info().config["max_msgs"]) == (86400 * 10**9, 1000)
    ensure_stream(link, absent.name, [absent.subject(">")], "", StreamLimits(max_msgs=5, max_bytes=0))
    config = absent.info().config
    assert (config["max_age"], config["max_bytes"], config["max_msgs"]) == (86400 * 10**9, -1, 5)


def test_a_short_life_of_messages_shortens_the_memory_of_their_ids(link, stream):
    ensure_stream(link, stream.name, [stream.subject(">")], "", StreamLimits(max_age=timedelta(seconds=10)))
    assert stream.info().config["duplicate_window"] == 10 * 10**9


def test_more_replicas_than_servers_are_refused_with_jetstreams_words(link, stream):
    with pytest.raises(BrokerError, match="replicas > 1 not supported") as refusal:
        ensure_stream(link, stream.name, [stream.subject(">")], "", StreamLimits(replicas=3))
    assert not refusal.value.retryable


def test_limits_that_an_operator_set_are_kept(link, stream):
    stream.update(max_msgs=77, max_age=3600 * 10**9, description="mine", max_msg_size=5000, metadata={"team": "data"})
    ensure_stream(link, stream.name, ["other.>"], "Creek stream relating to it")
    config = stream.info().config
    assert (config["max_msgs"], config["max_age"], config["description"]) == (77, 3600 * 10**9, "mine")
    assert config["max_msg_size"] == 5000
    assert config["metadata"]["team"] == "data"
    assert config["subjects"] == [stream.subject(">"), "other.>"]
    stream.update(subjects=[stream.subject(">")])


def test_a_stream_that_is_as_wanted_is_left_alone(link, stream):
    stream.update(metadata={"team": "data"})
    before = stream.info().config
    ensure_stream(link, stream.name, [stream.subject("part", ">")], "")
    assert stream.info().config == before


def test_many_who_add_their_subjects_at_once_are_all_served(access, absent):
    def add(number: int) -> None:
        with Link(access) as link:
            ensure_stream(link, absent.name, [absent.subject(str(number), ">")], "shared")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, range(6)))
    assert sorted(absent.info().subjects) == [absent.subject(str(number), ">") for number in range(6)]


def test_subjects_that_another_stream_has_are_refused_naming_it(link, stream):
    with pytest.raises(BrokerError, match=rf"stream 'OTHER' cannot have .*'{stream.name}' has '{stream.name}\.part\.>'"):
        ensure_stream(link, "OTHER", [stream.subject("part", ">")], "")
    assert stream_info(link, "OTHER") is None


def test_a_change_that_jetstream_does_not_allow_is_refused_with_its_words(link, stream):
    with pytest.raises(ApiError, match=r"refused STREAM\.UPDATE\..*retention policy"):
        ensure_stream(link, stream.name, [stream.subject(">")], "", StreamLimits(retention="workqueue"))


def test_a_stream_tells_what_it_holds(access, link, stream):
    before = datetime.now(UTC)
    empty = stream.info()
    assert (empty.messages, empty.last_seq, dict(empty.subject_counts)) == (0, 0, {})
    assert abs(before - empty.created) < timedelta(minutes=1)
    with Publisher(access) as publisher:
        for token, count in (("a", 3), ("b", 2)):
            publisher.publish(outgoing(stream.subject(token), numbered(count), token))
    info = stream_info(link, stream.name, stream.subject(">"))
    assert info is not None
    assert (info.messages, info.first_seq, info.last_seq) == (5, 1, 5)
    assert info.subject_counts == {stream.subject("a"): 3, stream.subject("b"): 2}
    narrow = stream_info(link, stream.name, stream.subject("b"))
    assert narrow is not None
    assert narrow.subject_counts == {stream.subject("b"): 2}


def test_a_stream_that_is_not_there_is_none(link):
    assert stream_info(link, "NONE") is None
    assert stream_info(link, "NONE", ">") is None


def test_a_server_without_jetstream_is_an_error_with_the_remedy():
    with ConfiguredNats(jetstream=None) as server, Link(NatsAccess(url=server.url)) as link:
        with pytest.raises(
            BrokerError, match=r"JetStream is not enabled on the NATS server at .*; start it with"
        ) as refusal:
            ensure_stream(link, "S", ["s.>"], "")
        assert not refusal.value.retryable


def test_an_account_without_jetstream_is_an_error_with_the_remedy():
    users = [{"user": "me", "password": "secret"}]
    with ConfiguredNats(authorization=None, accounts={"A": {"users": users}}) as server:
        access = NatsAccess(url=f"nats://me:secret@{server.address}", timeout=timedelta(seconds=5))
        with (
            Link(access) as link,
            pytest.raises(BrokerError, match=r"JetStream not enabled for account .*; give the account"),
        ):
            stream_info(link, "S")
