import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.brokers.nats import protocol
from headwater.brokers.nats.protocol import Control, Inbound, Message
from headwater.errors import BrokerError

subjects = st.text("abc$_-019", min_size=1, max_size=8).map(str.encode)
payloads = st.binary(max_size=40) | st.sampled_from([b"\r\n", b"MSG a 1 2\r\n", b"PING\r\n"])
messages = st.builds(
    Message,
    subjects,
    st.integers(1, 99),
    st.just(b"") | subjects,
    st.none() | st.just(b"NATS/1.0\r\nA: b\r\n\r\n"),
    payloads,
)
controls = st.sampled_from(
    [Control(b"PING", b""), Control(b"PONG", b""), Control(b"INFO", b'{"a": 1}'), Control(b"-ERR", b"'Stale Connection'")]
)


def written(item: Message | Control) -> bytes:
    if isinstance(item, Control):
        return item.verb + (b" " + item.text if item.text else b"") + b"\r\n"
    headers, reply = item.headers or b"", item.reply + b" " if item.reply else b""
    size = len(headers) + len(item.payload)
    if item.headers is None:
        line = b"MSG %b %d %b%d\r\n" % (item.subject, item.sid, reply, size)
    else:
        line = b"HMSG %b %d %b%d %d\r\n" % (item.subject, item.sid, reply, len(headers), size)
    return line + headers + item.payload + b"\r\n"


def read(inbound: Inbound) -> list[Message | Control]:
    return list(iter(inbound.take, None))


@given(st.lists(messages | controls, max_size=6), st.data())
def test_what_came_is_the_same_however_it_was_cut(items, data):
    whole = b"".join(map(written, items))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    inbound, found = Inbound(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        inbound.add(whole[start:end])
        found += read(inbound)
    assert found == items
    assert inbound.is_empty


def test_what_is_no_nats_is_refused():
    inbound = Inbound()
    inbound.add(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(BrokerError, match="does not speak the NATS protocol"):
        inbound.take()


def test_a_line_that_does_not_end_is_refused():
    inbound = Inbound()
    inbound.add(b"x" * (1 << 20) + b"x")
    with pytest.raises(BrokerError, match="does not speak the NATS protocol"):
        inbound.take()


def test_a_status_has_a_code_a_reason_and_numbers():
    headers = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 17\r\nNats-Pending-Bytes: 0\r\n\r\n"
    status = Message(b"a", 1, b"", headers, b"").status
    assert status is not None
    assert (status.code, status.reason) == (408, "Request Timeout")
    assert (status.number("Nats-Pending-Messages"), status.number("Nats-Pending-Bytes"), status.number("Other")) == (
        17,
        0,
        None,
    )


def test_headers_without_a_status_are_those_of_a_message():
    assert Message(b"a", 1, b"", b"NATS/1.0\r\nA: 503\r\n\r\n", b"").status is None
    assert Message(b"a", 1, b"", None, b"").status is None


def test_commands_are_written_as_the_protocol_has_them():
    assert protocol.subscribe("a.*", 3) == b"SUB a.* 3\r\n"
    assert protocol.publish("a.b", "r.1", b"xyz") == b"PUB a.b r.1 3\r\nxyz\r\n"
    assert protocol.publish("a.b", "", b"").split() == [b"PUB", b"a.b", b"0"]
    verb, _, options = protocol.connect({"name": "Zoë"}).partition(b" ")
    assert (verb, json.loads(options)) == (b"CONNECT", {"name": "Zoë"})
