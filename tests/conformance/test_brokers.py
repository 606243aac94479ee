"""What every broker does alike: one suite, run against a real server of each."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest

from headwater.brokers.base import Offered, Published
from headwater.errors import BrokerError, BrokerUnavailable
from tests.conformance.broker_contract import (
    CREATED_AT_TEXT,
    SOURCE,
    BrokerTarget,
    Kept,
    all_targets,
    message,
    messages,
    numbered,
)
from tests.support.waiting import eventually

# The servers of some take long to start.
pytestmark = pytest.mark.timeout(60)

PATIENT, HASTY = timedelta(seconds=15), timedelta(seconds=2)
TARGETS = all_targets()


@pytest.fixture(scope="session", params=sorted(TARGETS))
def served(request) -> Iterator[tuple[type[BrokerTarget], object]]:
    kind = TARGETS[request.param]
    for server in kind.serving():
        yield kind, server


@pytest.fixture
def target(served) -> Iterator[BrokerTarget]:
    kind, server = served
    target = kind(server)
    with target.open():
        yield target


@pytest.fixture
def outages(target) -> None:
    if not target.is_cut_off:
        pytest.skip(f"the client of {target.name} goes around the proxy")


@pytest.fixture
def broker(target):
    with closing(target.broker(PATIENT)) as opened:
        yield opened


@pytest.fixture
def hasty(target):
    """Gives up soon."""
    with closing(target.broker(HASTY)) as opened:
        yield opened


def payloads(kept: list[Kept]) -> list[bytes]:
    return [one.payload for one in kept]


def as_sent(rows) -> list[bytes]:
    return [row["payload"] for row in rows]


def test_messages_of_a_topic_are_stored_in_order(target, broker):
    rows = numbered(target.destination(), 1000, key="k")
    assert broker.publish(messages(*rows)) == Published(1000)
    kept = target.stored(rows[0]["topic"])
    assert payloads(kept) == as_sent(rows)
    assert [one.id for one in kept] == [row["id"] for row in rows]


def test_calls_follow_one_another_in_order(target, broker):
    rows = numbered(target.destination(), 30, key="k")
    for start in range(0, 30, 10):
        assert broker.publish(messages(*rows[start : start + 10])).stored == 10
    assert payloads(target.stored(rows[0]["topic"])) == as_sent(rows)


def test_everything_that_a_message_has_arrives(target, broker):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": trace, "tracestate": "vendor=1,other=2", "tenant": "north"}
    row = message(target.destination(), b'{"n": 1}', key="customer-7", headers=headers)
    broker.publish(messages(row))
    event = {
        "specversion": "1.0",
        "id": row["id"],
        "source": SOURCE,
        "type": "OrderPlaced",
        "time": CREATED_AT_TEXT,
        "partitionkey": "customer-7",
    }
    assert target.stored(row["topic"]) == [
        Kept(row["id"], "customer-7", "OrderPlaced", b'{"n": 1}', "application/json", headers, event)
    ]


def test_what_a_message_has_not_is_not_there(target, broker):
    row = message(target.destination(), content_type="application/octet-stream")
    broker.publish(messages(row))
    (kept,) = target.stored(row["topic"])
    assert (kept.key, kept.headers, kept.content_type) == (None, {}, "application/octet-stream")
    assert "partitionkey" not in kept.event


def test_payloads_of_any_size_arrive_as_they_are(target, broker):
    topic = target.destination()
    large = bytes(range(256)) * (target.large_bytes // 256)
    rows = [message(topic, payload, key="k") for payload in (b"", b"x", b"\r\n\0\xff", large, b"", b"after")]
    assert broker.publish(messages(*rows)).stored == 6
    assert payloads(target.stored(topic)) == as_sent(rows)


def test_odd_names_and_values_arrive_as_they_are(target, broker):
    headers = {
        "city": "Zürich, 東京",
        "lines": "one\r\ntwo: three\r\n\r\n",
        "blanks": "  both ends  ",
        "percent": "100% %41",
        "quoted": '"x" \\ y',
        "empty": "",
    }
    row = message(target.destination(), type="bestellung.größer", key="ключ" * (target.longest_key // 4), headers=headers)
    assert broker.publish(messages(row)) == Published(1)
    (kept,) = target.stored(row["topic"])
    assert (kept.type, kept.key, kept.headers) == (row["type"], row["key"], headers)


def test_messages_of_several_topics_in_one_call_each_arrive_in_order(target, broker):
    topics = [target.destination() for _ in range(3)]
    rows = [row for group in zip(*(numbered(topic, 100) for topic in topics), strict=True) for row in group]
    assert broker.publish(messages(*rows)) == Published(300)
    for topic in topics:
        assert payloads(target.stored(topic)) == as_sent(numbered(topic, 100))


def test_nothing_to_publish_is_done_at_once(broker):
    assert broker.publish(messages()) == Published(0)


def test_a_message_that_has_nowhere_to_go_is_refused_and_the_others_are_stored(target, broker):
    if not target.has_unroutable:
        pytest.skip(f"{target.name} makes what is missing")
    rows = numbered(target.destination(), 10)
    lost = message(target.nowhere())
    published = broker.publish(messages(*rows[:5], lost, *rows[5:], lost))
    assert published.stored == 10
    assert [one.index for one in published.refused] == [5, 11]
    assert lost["topic"] in published.refused[0].reason
    assert payloads(target.stored(rows[0]["topic"])) == as_sent(rows)


def test_a_message_that_is_too_large_is_refused_and_the_others_are_stored(target, broker):
    topic = target.destination()
    rows = numbered(topic, 10)
    large = message(topic, b"x" * target.oversized_bytes)
    published = broker.publish(messages(*rows[:5], large, *rows[5:]))
    assert (published.stored, [one.index for one in published.refused]) == (10, [5])
    assert any(character.isdigit() for character in published.refused[0].reason), "the sizes are not told"
    kept = payloads(target.stored(topic))
    assert sorted(set(kept)) == as_sent(rows)
    assert [payload for at, payload in enumerate(kept) if payload not in kept[at + 1 :]] == as_sent(rows)


def test_what_is_stored_already_is_told_where_the_broker_can_tell(target, broker):
    rows = numbered(target.destination(), 20)
    broker.publish(messages(*rows[:10]))
    published = broker.publish(messages(*rows))
    expected = Published(10, 10) if target.knows_duplicates else Published(20)
    assert published == expected
    assert len(target.stored(rows[0]["topic"])) == (20 if target.knows_duplicates else 30)


def test_a_broker_that_comes_back_in_time_has_everything_in_order(target, broker, outages):
    rows = numbered(target.destination(), 500, key="k")
    broker.publish(messages(*rows[:10]))
    target.door.refuse = True
    target.door.cut()
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(broker.publish, messages(*rows[10:]))
        eventually(lambda: target.door.turned_away >= 2)
        target.door.refuse = False
        published = publishing.result()
    assert published == Published(490)
    assert payloads(target.stored(rows[0]["topic"])) == as_sent(rows)


def test_a_broker_that_is_away_when_first_used_and_comes_in_time_has_everything(target, broker, outages):
    rows = numbered(target.destination(), 10)
    target.door.refuse = True
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(broker.publish, messages(*rows))
        eventually(lambda: target.door.turned_away >= 2)
        target.door.refuse = False
        assert publishing.result() == Published(10)
    assert payloads(target.stored(rows[0]["topic"])) == as_sent(rows)


def test_a_connection_that_is_cut_while_publishing_loses_nothing_and_keeps_the_order(target, broker, outages):
    rows = numbered(target.destination(), 2000, key="k")
    target.door.cut_after = rows[1000]["payload"]
    published = broker.publish(messages(*rows))
    assert target.door.cut_after is None
    assert (published.stored + published.duplicates, published.refused) == (2000, ())
    kept = payloads(target.stored(rows[0]["topic"]))
    # What was under way may be there twice: neither the first copies nor the last ones are out of order.
    assert list(dict.fromkeys(kept)) == as_sent(rows)
    assert list(dict.fromkeys(reversed(kept))) == as_sent(rows)[::-1]


def test_a_broker_that_stays_away_is_an_error_in_about_the_timeout_and_works_when_it_is_back(target, hasty, outages):
    rows = numbered(target.destination(), 20)
    hasty.publish(messages(*rows[:10]))
    target.door.refuse = True
    target.door.cut()
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable) as unavailable:
        hasty.publish(messages(*rows[10:]))
    assert 0.5 < time.monotonic() - began < 10
    assert target.secret not in str(unavailable.value)
    target.door.refuse = False
    assert hasty.publish(messages(*rows[10:])) == Published(10)
    assert payloads(target.stored(rows[0]["topic"])) == as_sent(rows)


def test_somebody_who_takes_connections_and_says_nothing_is_an_error_in_about_the_timeout(target, outages):
    with target.silenced(), closing(target.broker(HASTY)) as broker:
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable) as unavailable:
            broker.publish(messages(message("any")))
        assert 0.5 < time.monotonic() - began < 10
        assert target.secret not in str(unavailable.value)


def test_a_connection_that_was_cut_while_idle_is_opened_again(target, broker, outages):
    rows = numbered(target.destination(), 20)
    broker.publish(messages(*rows[:10]))
    target.door.cut()
    assert broker.publish(messages(*rows[10:])) == Published(10)
    assert payloads(target.stored(rows[0]["topic"])) == as_sent(rows)


def test_wrong_credentials_are_an_error_at_once_that_does_not_tell_them(target):
    if not target.has_logins:
        pytest.skip(f"the server of {target.name} lets everybody in")
    wrong = "d3JvbmctcGFzc3dvcmQ="
    with closing(target.broker(timedelta(seconds=30), secret=wrong)) as broker:
        began = time.monotonic()
        with pytest.raises(BrokerError) as refusal:
            broker.publish(messages(message("any")))
    assert not refusal.value.retryable
    assert time.monotonic() - began < 20
    assert wrong not in f"{refusal.value!s} {refusal.value!r} {refusal.value.__cause__!r}"


def test_settings_and_broker_do_not_show_their_secret(target, broker):
    broker.publish(messages(message(target.destination())))
    assert not [text for text in target.descriptions(broker) if target.secret in text]


def test_a_closed_broker_opens_again(target, broker):
    rows = numbered(target.destination(), 20)
    broker.publish(messages(*rows[:10]))
    broker.close()
    broker.close()
    assert broker.publish(messages(*rows[10:])) == Published(10)
    assert payloads(target.stored(rows[0]["topic"])) == as_sent(rows)


def test_a_check_passes_where_messages_would_and_leaves_none(target, broker):
    broker.check()
    destination = target.destination()
    assert broker.publish(messages(message(destination))) == Published(1)
    assert len(target.stored(destination)) == 1


def test_a_check_tells_a_wrong_login(target):
    if not target.has_logins or not target.checks_logins:
        pytest.skip(f"the server of {target.name} lets everybody in, or only tells whoever names a place")
    with closing(target.broker(PATIENT, secret="d3JvbmctcGFzc3dvcmQ=")) as broker, pytest.raises(BrokerError) as refusal:
        broker.check()
    assert not refusal.value.retryable


def test_what_is_offered_is_stored(target, broker):
    rows = numbered(target.destination(), 1000)
    assert broker.offer(messages(*rows)) == Offered(1000)
    kept = target.stored(rows[0]["topic"])
    assert sorted(payloads(kept)) == as_sent(rows)
    assert {one.id for one in kept} == {row["id"] for row in rows}


def test_an_offered_message_is_the_same_as_a_published_one(target, broker):
    topics = [target.destination(), target.destination()]
    headers = {"tenant": "north", "city": "Zürich"}
    row = message(topics[0], b'{"n": 1}', key="customer-7", headers=headers)
    broker.publish(messages(row))
    assert broker.offer(messages({**row, "topic": topics[1]})) == Offered(1)
    assert target.stored(topics[0]) == target.stored(topics[1])


@pytest.mark.parametrize("count", [1, 2, 17])
def test_offers_of_few_messages_follow_one_another(target, broker, count):
    rows = numbered(target.destination(), 10 * count)
    for start in range(0, len(rows), count):
        assert broker.offer(messages(*rows[start : start + count])) == Offered(count)
    assert sorted(payloads(target.stored(rows[0]["topic"]))) == as_sent(rows)


def test_messages_of_several_topics_are_offered_together(target, broker):
    topics = [target.destination() for _ in range(3)]
    rows = [row for group in zip(*(numbered(topic, 50) for topic in topics), strict=True) for row in group]
    assert broker.offer(messages(*rows)) == Offered(150)
    for topic in topics:
        assert sorted(payloads(target.stored(topic))) == as_sent(numbered(topic, 50))


def test_nothing_to_offer_is_done_at_once(broker):
    assert broker.offer(messages()) == Offered(0)


def test_an_offer_refuses_what_has_nowhere_to_go_and_stores_the_others(target, broker):
    if not target.has_unroutable:
        pytest.skip(f"{target.name} makes what is missing")
    rows = numbered(target.destination(), 10)
    lost = message(target.nowhere())
    offered = broker.offer(messages(*rows[:5], lost, *rows[5:], lost))
    assert (offered.stored, [one.index for one in offered.refused], offered.left) == (10, [5, 11], ())
    assert lost["topic"] in offered.refused[0].reason
    assert sorted(payloads(target.stored(rows[0]["topic"]))) == as_sent(rows)


def test_an_offer_in_the_end_refuses_what_is_too_large_and_loses_none_of_the_others(target, broker):
    topic = target.destination()
    rows = numbered(topic, 10)
    offered = broker.offer(messages(*rows[:5], message(topic, b"x" * target.oversized_bytes), *rows[5:]))
    # A broker may tell its limit by hanging up.
    assert [one.index for one in offered.refused] == [5]
    assert offered.stored + len(offered.left) == 10
    again = [[*rows[:5], None, *rows[5:]][one.index] for one in offered.left]
    assert broker.offer(messages(*again)).stored == len(again)
    assert sorted(set(payloads(target.stored(topic)))) == as_sent(rows)


def test_what_is_offered_again_is_told_where_the_broker_can_tell(target, broker):
    rows = numbered(target.destination(), 20)
    broker.offer(messages(*rows[:10]))
    assert broker.offer(messages(*rows)) == (Offered(10, 10) if target.knows_duplicates else Offered(20))


def test_a_broker_that_is_not_there_is_an_error_of_the_offer_and_nothing_was_sent(target, hasty, outages):
    rows = numbered(target.destination(), 10)
    target.door.refuse = True
    with pytest.raises(BrokerUnavailable) as unavailable:
        hasty.offer(messages(*rows))
    assert target.secret not in str(unavailable.value)
    target.door.refuse = False
    assert hasty.offer(messages(*rows)) == Offered(10)
    assert sorted(payloads(target.stored(rows[0]["topic"]))) == as_sent(rows)


def test_an_offer_to_somebody_who_takes_connections_and_says_nothing_is_an_error(target, outages):
    with target.silenced(), closing(target.broker(HASTY)) as broker, pytest.raises(BrokerUnavailable):
        broker.offer(messages(message("any")))


def test_an_offer_with_wrong_credentials_is_an_error_that_does_not_tell_them(target):
    if not target.has_logins:
        pytest.skip(f"the server of {target.name} lets everybody in")
    wrong = "d3JvbmctcGFzc3dvcmQ="
    with closing(target.broker(PATIENT, secret=wrong)) as broker, pytest.raises(BrokerError) as refusal:
        broker.offer(messages(message("any")))
    assert not refusal.value.retryable
    assert wrong not in f"{refusal.value!s} {refusal.value!r} {refusal.value.__cause__!r}"


def test_an_offer_that_is_cut_under_way_tells_what_is_stored_and_leaves_the_rest(target, broker, outages):
    rows = numbered(target.destination(), 2000)
    # So that it is cut between messages, and not in the handshake.
    broker.offer(messages(*rows[:10]))
    target.door.cut_after = rows[1000]["payload"]
    offered = broker.offer(messages(*rows[10:]))
    assert target.door.cut_after is None
    assert offered.stored + offered.duplicates + len(offered.left) == 1990
    assert not offered.refused
    left = {one.index + 10 for one in offered.left}
    assert not [one.reason for one in offered.left if not one.reason or target.secret in one.reason]
    told = [row["payload"] for place, row in enumerate(rows) if place not in left]
    again = [rows[place] for place in sorted(left)]
    assert broker.offer(messages(*again)).left == ()
    kept = payloads(target.stored(rows[0]["topic"]))
    assert not set(told) - set(kept), "told as stored, and is not there"
    assert sorted(set(kept)) == as_sent(rows)


def test_what_an_idle_connection_that_was_cut_leaves_can_be_offered_again(target, broker, outages):
    rows = numbered(target.destination(), 20)
    broker.offer(messages(*rows[:10]))
    target.door.cut()
    offered = broker.offer(messages(*rows[10:]))
    again = [rows[10 + one.index] for one in offered.left]
    assert broker.offer(messages(*again)).left == ()
    assert sorted(set(payloads(target.stored(rows[0]["topic"])))) == as_sent(rows)


def test_offers_and_publishes_share_a_broker(target, broker):
    rows = numbered(target.destination(), 30)
    assert broker.offer(messages(*rows[:10])) == Offered(10)
    assert broker.publish(messages(*rows[10:20])) == Published(10)
    broker.close()
    assert broker.offer(messages(*rows[20:])) == Offered(10)
    assert sorted(payloads(target.stored(rows[0]["topic"]))) == as_sent(rows)
