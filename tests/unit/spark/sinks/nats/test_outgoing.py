"""Messages as the publisher takes them: packets that do not depend on what else is sent, ids, and headers."""

import numpy as np
import pyarrow as pa
import pytest

from headwater.creek.framing import Reassembly
from headwater.spark.sinks.nats.outgoing import CloudEvents, Messages, chunk_bytes, prepare, too_large

LIMIT = 4096


def messages(payloads, unchanged=None):
    count = len(payloads)
    return Messages(
        "S",
        "public.item",
        pa.array([f"id.{number}" for number in range(count)]),
        pa.array(["c"] * count),
        np.zeros(count, np.int64),
        pa.array(payloads, pa.binary()),
        None if unchanged is None else pa.array(unchanged, pa.string()),
    )


def together(prepared):
    reassembly = Reassembly()
    found = (reassembly.add("S", packet) for packet in prepared.outgoing.payloads.to_pylist())
    return [body for body in found if body is not None]


def test_small_messages_are_one_packet_each():
    prepared = prepare(messages([b"a", b"bb", b""]), LIMIT, None, in_packets=True)

    assert prepared.outgoing.ids.to_pylist() == ["id.0-seq-0", "id.1-seq-0", "id.2-seq-0"]
    assert (prepared.outgoing.starts, prepared.outgoing.headers) == (None, None)
    assert together(prepared) == [b"a", b"bb", b""]
    assert prepared.messages.tolist() == [0, 1, 2]


def test_a_large_message_has_packets_of_its_own_between_the_others():
    large = bytes(range(256)) * 30
    prepared = prepare(messages([b"a", large, b"c"], [None, "x,y", None]), LIMIT, None, in_packets=True)

    out = prepared.outgoing
    assert out.ids.to_pylist() == ["id.0-seq-0", "id.1-seq-0", "id.1-seq-1", "id.1-seq-2", "id.2-seq-0"]
    assert out.starts is not None and out.headers is not None
    assert out.starts.to_pylist() == [True, True, False, False, True]
    assert out.headers.to_pylist() == [b"", *[b"Headwater-Unchanged: x,y\r\n"] * 3, b""]
    assert together(prepared) == [b"a", large, b"c"]
    assert prepared.messages.tolist() == [0, 1, 1, 1, 2]


@pytest.mark.parametrize("limit", [LIMIT, 65_536, 1_048_576])
def test_packets_with_all_their_headers_stay_below_the_limit(limit):
    large = messages([b"x" * (3 * limit)], ["column_%2C" * 20])
    out = prepare(large, limit, CloudEvents("/postgresql/1/db", "application/avro"), in_packets=True).outgoing

    assert out.headers is not None
    line = len("NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")
    sizes = [
        line + len(id) + len(header) + len(payload)
        for id, header, payload in zip(out.ids.to_pylist(), out.headers.to_pylist(), out.payloads.to_pylist(), strict=True)
    ]
    assert max(sizes) <= limit


def test_where_a_message_is_cut_does_not_depend_on_its_neighbours():
    large = b"x" * 10_000
    alone = prepare(messages([large]), LIMIT, None, in_packets=True).outgoing.payloads.to_pylist()
    among = prepare(
        messages([large, b"b"], ["long" * 100, None]), LIMIT, None, in_packets=True
    ).outgoing.payloads.to_pylist()

    assert among[: len(alone)] == alone


def test_messages_that_no_packets_can_hold_are_told():
    assert too_large(messages([b"x" * LIMIT, b"x"]), LIMIT, in_packets=False).tolist() == [0]
    assert too_large(messages([b"x" * LIMIT, b"x"]), LIMIT, in_packets=True).tolist() == []
    assert chunk_bytes(1_048_576) == 1_048_576 - 7 - 8192


def test_headers_of_cloudevents_are_percent_encoded():
    one = messages([b"{}"])
    odd = Messages("S", 'public."Größe"', one.ids, one.ops, np.array([1_700_000_000_000_000]), one.payloads, None)

    out = prepare(odd, LIMIT, CloudEvents("/postgresql/1/my%20db", "application/json"), in_packets=False).outgoing

    assert out.headers is not None
    assert out.headers.to_pylist()[0].decode().split("\r\n") == [
        "ce-specversion: 1.0",
        "ce-source: /postgresql/1/my%2520db",
        "ce-subject: public.%22Gr%C3%B6%C3%9Fe%22",
        "ce-datacontenttype: application/json",
        "ce-type: headwater.change.c",
        "ce-id: id.0",
        "ce-time: 2023-11-14T22:13:20Z",
        "",
    ]
