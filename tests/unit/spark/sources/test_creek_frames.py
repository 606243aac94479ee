"""Creek's messages to frames: by columns, one by one where something is odd, and as the server would have sent them."""

import numpy as np
import pytest

from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.encode import encode_batch
from headwater.creek.names import Generation
from headwater.model import UNCHANGED, Lineage, Lsn
from headwater.postgres.replication.batch import Batch, lay_out, relations_in, tags_of
from headwater.postgres.replication.columnar import as_sent, decode_columns
from headwater.postgres.types import Types
from headwater.spark.sources.creek.columns import Odd
from headwater.spark.sources.creek.frames import CreekFrame, Run, frames_of
from headwater.spark.sources.creek.messages import Messages, joined
from headwater.spark.sources.creek.offset import Mark
from headwater.spark.sources.creek.reading import MessageReader
from tests.support.capture.pgoutput_writer import begin, commit, delete, insert, relation, truncate, update

TABLE = TableMapping.parse("shop.public.things:copy.things")
LINEAGE = Lineage("CREEK_wal-1", 1, (), "CREEK_wal", "creek")
NAMES = {type_.name: oid for oid, type_ in Types.builtin().items()}
NUMERIC = ((12 << 16) | 3) + 4
WIDE = ((60 << 16) | 20) + 4

# Of each type, texts as the server writes them; some do not fit Creek's own schema.
VALUES: dict[str, tuple[str, int, list[str | None]]] = {
    "id": ("int8", -1, ["1", "-9223372036854775808", "9223372036854775807", "0", "64"]),
    "flag": ("bool", -1, ["t", "f", None, "t", "f"]),
    "small": ("int2", -1, ["-32768", None, "32767", "0", "63"]),
    "text": ("text", -1, ["", "ä€😀", None, "a\nb", "NULL"]),
    "fixed": ("bpchar", -1, ["ab  ", "c   ", None, "    ", "xyz "]),
    "single": ("float4", -1, ["0.1", "NaN", "-Infinity", "1e+20", "-0"]),
    "double": ("float8", -1, ["0.1", "Infinity", None, "1e-300", "123456789.25"]),
    "day": ("date", -1, ["2024-02-29", "infinity", "-infinity", "0044-03-15 BC", "12000-01-01"]),
    "clock": ("time", -1, ["07:08:09.12", "24:00:00", None, "00:00:00", "23:59:59.999999"]),
    "moment": ("timestamp", -1, ["2024-02-29 07:08:09.12", "infinity", None, "0001-01-01 00:00:00", "9999-12-31 23:59:59"]),
    "instant": (
        "timestamptz",
        -1,
        ["2024-02-29 07:08:09+00", "-infinity", None, "10000-01-01 00:00:00+00", "1970-01-01 00:00:00+00"],
    ),
    "code": ("uuid", -1, ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None, None, None, None]),
    "plain": ("json", -1, ['{"a":1}', "[1]", None, "null", '"x"']),
    "amount": ("numeric", NUMERIC, ["1.500", "-0.001", None, "NaN", "999999999.999"]),
    "wide": (
        "numeric",
        WIDE,
        [
            "1.00000000000000000001",
            "-123456789012345678901234567890.12345678901234567890",
            None,
            "0.00000000000000000000",
            "NaN",
        ],
    ),
    "free": ("numeric", -1, [None, "1.5", None, "1e3", "-7"]),
    "list": ("_int4", -1, ["{1,2}", "{}", None, "{1,NULL}", "{{1,2},{3,4}}"]),
    "words": ("_text", -1, ['{a,"b c"}', "{}", None, '{""}', '{"a\\"b"}']),
    "address": ("inet", -1, ["10.0.0.1", None, "::1", None, "10.0.0.0/8"]),
}


def things(*columns: str, key: str = "id", identity: str = "d", oid: int = 100) -> bytes:
    names = columns or tuple(VALUES)
    described = [(name, NAMES[VALUES[name][0]], VALUES[name][1], name == key or identity == "f") for name in names]
    return relation(oid, "things", described, identity)


def encoded(*messages: bytes, generation: Generation = Generation.ONE) -> tuple[Messages, dict[bytes, str]]:
    """The messages of one transaction, at the places 1, 2 and so on, and the schemas that they name."""
    data, bounds = lay_out([begin(1000, 5, 77), *messages, commit(1000, 1008, 5)])
    known = relations_in(data, bounds, tags_of(data, bounds), 0)
    batch = Batch(data, bounds, known, len(messages), Lsn(1008))
    schemas: dict[bytes, str] = {}
    parts: list[Messages] = []
    for one in encode_batch(
        batch, Types.builtin(), database="shop", generation=generation, sent_at=1_700_000_000_000_000, previous=Lsn(0)
    ):
        for schema in filter(None, (one.schema, one.widened)):
            schemas[schema.fingerprint] = schema.text
        first = sum(len(part) for part in parts) + 1
        places = range(first, first + len(one))
        unchanged = {} if one.unchanged is None else dict(zip(places, one.unchanged.to_pylist(), strict=True))
        unchanged = {place: names for place, names in unchanged.items() if names is not None}
        parts.append(Messages.of(one.payloads.to_pylist(), places, [0] * len(one), unchanged))
    return joined(parts), schemas


def frames(messages: Messages, schemas: dict[bytes, str]) -> list[CreekFrame]:
    end = Mark(len(messages))
    return list(frames_of(Run(TABLE, 1, Mark(0), end, messages, schemas), 0, LINEAGE))


def decoded(
    frame: CreekFrame,
) -> list[tuple[str, str | None, dict[str, list[str | None]], dict[str, list[str | None]], list[int]]]:
    groups = decode_columns(frame.batch, Types.builtin(), as_sent)
    return [
        (
            group.tag,
            group.old_kind,
            {} if group.before is None else group.before.to_pydict(),
            {} if group.after is None else group.after.to_pydict(),
            group.places.commit_lsn.tolist(),
        )
        for group in groups
    ]


@pytest.mark.parametrize("generation", Generation)
def test_every_type_comes_out_as_the_server_wrote_it(generation):
    rows = list(zip(*(values for _, _, values in VALUES.values()), strict=True))
    [frame] = frames(*encoded(things(), *(insert(100, row) for row in rows), generation=generation))
    assert not frame.unreadable
    [(tag, _, _, after, places)] = decoded(frame)
    expected = {name: list(values) for name, (_, _, values) in VALUES.items()}
    assert (tag, places) == ("I", [1, 2, 3, 4, 5])
    assert after == expected
    assert frame.lsns.tolist() == [1000] * 5
    assert (frame.table.target.schema, frame.table.target.table) == ("copy", "things")


def test_what_does_not_begin_as_a_message_has_no_fingerprint():
    ours = b"\xc3\x01" + bytes(range(1, 9))
    bodies = [b'{"before":null,"after":{"id":1}}', ours, b"short", b"", ours + b"more", b"\xc3\x02" + ours]
    found = Messages.of(bodies, range(1, 7), [0] * 6, {}).fingerprints
    none = bytes(8)
    assert [one.tobytes() for one in found] == [none, ours[2:], none, none, ours[2:], none]


def _refuse(*_given: object) -> None:
    raise Odd


def test_columns_and_single_rows_give_the_same(monkeypatch):
    rows = list(zip(*(values for _, _, values in VALUES.values()), strict=True))
    found = encoded(things(), *(insert(100, row) for row in rows * 3))
    by_columns = [decoded(frame) for frame in frames(*found)]
    monkeypatch.setattr(MessageReader, "_in_step", _refuse)
    one_by_one = [decoded(frame) for frame in frames(*found)]
    assert by_columns == one_by_one


def test_every_operation_keeps_its_place_and_meaning():
    table = things("id", "text")
    [frame] = frames(
        *encoded(
            table,
            insert(100, ["1", "a"]),
            update(100, ["1", "b"]),
            update(100, ["2", "b"], ["1", None]),
            delete(100, ["2", None]),
            truncate(100),
            insert(100, ["3", "c"]),
        )
    )
    found = {(tag, kind): (before, after, places) for tag, kind, before, after, places in decoded(frame)}
    assert found == {
        ("I", None): ({}, {"id": ["1", "3"], "text": ["a", "c"]}, [1, 6]),
        ("U", None): ({}, {"id": ["1"], "text": ["b"]}, [2]),
        ("U", "K"): ({"id": ["1"]}, {"id": ["2"], "text": ["b"]}, [3]),
        ("D", "K"): ({"id": ["2"]}, {}, [4]),
        ("T", None): ({}, {}, [5]),
    }


def test_under_identity_full_the_whole_old_row_is_known():
    table = things("id", "text", identity="f")
    [frame] = frames(*encoded(table, update(100, ["1", "b"], ["1", "a"], "O"), delete(100, ["1", "b"], "O")))
    found = {(tag, kind): before for tag, kind, before, _, _ in decoded(frame)}
    assert found == {("U", "O"): {"id": ["1"], "text": ["a"]}, ("D", "O"): {"id": ["1"], "text": ["b"]}}


def test_columns_that_were_left_alone_are_not_null():
    [frame] = frames(
        *encoded(things("id", "text", "words"), update(100, ["1", UNCHANGED, None]), update(100, ["2", "x", UNCHANGED]))
    )
    [group] = decode_columns(frame.batch, Types.builtin(), as_sent)
    assert {name: mask.tolist() for name, mask in group.unchanged.items()} == {"text": [True, False], "words": [False, True]}


def test_a_table_that_is_altered_on_the_way_comes_in_parts():
    first, _ = encoded(things("id", "text"), insert(100, ["1", "a"]))
    second, _ = encoded(things("id", "text", "day"), insert(100, ["2", "b", "2024-01-01"]))
    third, _ = encoded(things("id", "text"), insert(100, ["3", "c"]))
    schemas = {
        **encoded(things("id", "text"), insert(100, ["1", "a"]))[1],
        **encoded(things("id", "text", "day"), insert(100, ["1", "a", None]))[1],
    }
    moved = [Messages(m.data, m.bounds, np.array([n]), m.subjects) for n, m in enumerate((first, second, third), 1)]
    parts = frames(joined(moved), schemas)
    assert [decoded(frame)[0][4] for frame in parts] == [[1], [2], [3]]
    assert [len(decoded(frame)[0][3]) for frame in parts] == [2, 3, 2]


def test_a_message_that_cannot_be_read_is_told_apart_from_the_others():
    messages, schemas = encoded(things("id", "text"), *(insert(100, [str(n), "a"]) for n in range(4)))
    bodies = [messages.at(number)[1] for number in range(4)]
    bodies[1] = bodies[1][:-1]
    bodies[2] = b"nonsense"
    parts = frames(Messages.of(bodies, [1, 2, 3, 4], [0] * 4, {}), schemas)
    assert [decoded(frame)[0][4] for frame in parts if len(frame.batch)] == [[1, 4]]
    bad = [one for frame in parts for one in frame.unreadable]
    assert [(one.sequence, one.message) for one in bad] == [(2, bodies[1]), (3, bodies[2])]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_messages_that_are_cut_or_filled_anywhere_never_break_the_reader(cut):
    """Whatever is wrong with one message, the others come through."""
    messages, schemas = encoded(things(), *(insert(100, [v[0] for _, _, v in VALUES.values()]) for _ in range(3)))
    bodies = [messages.at(number)[1] for number in range(3)]
    body = bodies[1]
    at = 10 + cut * (len(body) - 10) // 40
    for bad in (body[:at], body[:at] + b"\xff" * 12 + body[at:], body[:at] + bytes(len(body) - at)):
        parts = frames(Messages.of([bodies[0], bad, bodies[2]], [1, 2, 3], [0] * 3, {}), schemas)
        places = [place for frame in parts if len(frame.batch) for place in decoded(frame)[0][4]]
        assert {1, 3} <= set(places)
        assert set(places) | {one.sequence for frame in parts for one in frame.unreadable} == {1, 2, 3}
