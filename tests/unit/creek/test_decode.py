"""Creek's messages from bytes: its own packets, every value as Python and as text, and what is no message."""

import json
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.creek.decode import Decoder, Schema, WalMessage, decode_message
from headwater.creek.decode.forms import TEXT, float4_text, float8_text
from headwater.creek.decode.instants import date_text, timestamp_text, timestamptz_text
from headwater.creek.decode.rows import list_reader
from headwater.creek.encode import encode_rows
from headwater.creek.names import Generation
from headwater.creek.schema import row_schema, wal_schema
from headwater.errors import MessageError
from headwater.model import Lsn, Op
from headwater.postgres.replication.messages import Relation
from headwater.postgres.types import to_python
from tests.support.creek.avro_reference import TYPES
from tests.support.creek.avro_vectors import WIDE, WIDE_ROWS
from tests.support.creek.fastavro_producer import avro
from tests.support.creek.fastavro_producer import relation as table
from tests.unit.creek.test_encode import GOLDEN, OTHER

AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def golden(generation: Generation) -> tuple[Decoder, bytes]:
    """A decoder of the sheet's table, and the datum of its packet."""
    fingerprint, datum = decode_message(bytes.fromhex(GOLDEN[generation])[6:])
    schema = wal_schema(OTHER, TYPES, generation)
    assert fingerprint == schema.fingerprint
    return Decoder(schema.text), datum


@pytest.mark.parametrize("generation", Generation)
def test_creeks_own_packet_is_an_insert(generation):
    decoder, datum = golden(generation)
    message = decoder.wal(datum, 17, "7301.1.test_db.slot.17FA337.3", ("data",))
    last_lsn = Lsn.parse("0/17FA0E5") if generation is Generation.ONE else None
    assert message.fingerprint == wal_schema(OTHER, TYPES, generation).name
    assert (message.op, message.before, message.after) == (Op.INSERT, None, {"id": 1, "data": "test"})
    assert message.sent_at == AT.replace(microsecond=500_000)
    source = message.source
    assert (source.name, source.db, source.schema, source.table) == ("dummy", "test_db", "public", "other")
    assert (source.tx_at, source.tx_id, source.last_lsn, source.lsn) == (AT, 504, last_lsn, Lsn.parse("0/17FA337"))
    assert (message.sequence, message.position, message.ordinal, message.unchanged) == (17, 17, 3, ("data",))


@pytest.mark.parametrize(
    ("id", "ordinal"),
    [
        (None, None),
        ("0/17FA337", None),
        ("7301.1.a.b.c.slot.17FA337.12", 12),
        # Of another transaction, so it is no id of the form that it looks like.
        ("7301.1.shop.slot.17FA338.12", None),
        ("7301.1.shop.slot.17FA337.m", None),
        ("17FA337.4", None),
    ],
)
def test_the_place_in_a_transaction_is_in_the_id_of_an_event(id, ordinal):
    decoder, datum = golden(Generation.ONE)
    assert decoder.wal(datum, 1, id).ordinal == ordinal


def enveloped(schema_of: Relation, op: str, before: Any, after: Any, **source: Any) -> tuple[str, bytes]:
    """The text of a schema, and a datum of it."""
    schema = wal_schema(schema_of, TYPES, Generation.ONE)
    content = {"name": "dummy", "tx_at": AT, "db": "d", "schema": "public", "table": "t", "tx_id": 1, "last_lsn": "0/1"}
    envelope = {"fingerprint": schema.name, "source": content | {"lsn": "0/2"} | source, "op": op, "sent_at": AT}
    return schema.text, avro(schema, {**envelope, "before": before, "after": after})


def test_operations_have_the_rows_that_they_carry():
    changes = [
        ("u", {"id": 1}, {"id": 1, "data": None}),
        ("u_pk", {"id": 1}, {"id": 2, "data": "x"}),
        ("d", {"id": 2}, None),
        ("t", None, None),
        ("r", None, {"id": 3, "data": ""}),
    ]
    decoder = Decoder(wal_schema(table(), TYPES, Generation.ONE).text)
    found = [decoder.wal(enveloped(table(), *change)[1]) for change in changes]
    assert [(message.op, message.before, message.after) for message in found] == changes


def test_messages_of_different_transactions_are_told_apart_in_any_order():
    """What was read of the message before is only used if the bytes are the same."""
    decoder = Decoder(wal_schema(table(), TYPES, Generation.ONE).text)
    lsns = ["0/2", "0/2", "0/3", "F/AA", "0/2", "0/22"]
    data = [enveloped(table(), "d", {"id": place}, None, lsn=lsn, tx_id=place)[1] for place, lsn in enumerate(lsns)]
    found = [decoder.wal(datum) for datum in data]
    assert [str(message.source.lsn) for message in found] == lsns
    assert [message.source.tx_id for message in found] == [*range(6)]
    assert [message.before for message in found] == [{"id": place} for place in range(6)]


def test_a_message_that_cannot_be_read_leaves_nothing_behind_for_the_next():
    decoder = Decoder(wal_schema(table(), TYPES, Generation.ONE).text)
    (_, good), (_, other) = (enveloped(table(), "t", None, None, lsn=lsn) for lsn in ("0/2", "0/3"))
    decoder.wal(good)
    # Where the source ends and the rows would begin.
    end = other.index(b"0/3") + 3
    with pytest.raises(MessageError):
        decoder.wal(other[:end])
    assert decoder.wal(good).source.lsn == Lsn(2)


VALUES: list[tuple[str, str, object]] = [
    ("bool", "t", True),
    ("bool", "f", False),
    ("int2", "-32768", -32768),
    ("int4", "64", 64),
    ("int4", "8192", 8192),
    ("int8", "9223372036854775807", 2**63 - 1),
    ("int8", "-9223372036854775808", -(2**63)),
    ("float4", "0.1", 0.1),
    ("float4", "-Infinity", float("-inf")),
    ("float8", "1e+300", 1e300),
    ("numeric(10:2)", "-0.05", Decimal("-0.05")),
    ("numeric(10:2)", "12.50", Decimal("12.50")),
    ("numeric(38:0)", "-" + "9" * 38, Decimal("-" + "9" * 38)),
    ("numeric(100:50)", "9" * 50 + "." + "1" * 50, Decimal("9" * 50 + "." + "1" * 50)),
    ("numeric", "1.50", Decimal("1.50")),
    ("numeric", "-Infinity", Decimal("-Infinity")),
    ("text", "x" * 63 + "é", "x" * 63 + "é"),
    ("text", "y" * 9000, "y" * 9000),
    ("bpchar", "ab  ", "ab  "),
    ("char", "c", "c"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    ("date", "2024-02-29", date(2024, 2, 29)),
    ("date", "0044-03-15 BC", "0044-03-15 BC"),
    ("date", "5874897-12-31", "5874897-12-31"),
    ("date", "infinity", "infinity"),
    ("time", "23:59:59.999999", time(23, 59, 59, 999_999)),
    ("time", "24:00:00", "24:00:00"),
    ("timestamp", "2024-02-29 12:30:00.5", datetime(2024, 2, 29, 12, 30, 0, 500_000)),
    ("timestamp", "0001-01-01 00:00:00", datetime(1, 1, 1)),
    ("timestamp", "0001-12-31 23:59:59.999999 BC", "0001-12-31 23:59:59.999999 BC"),
    ("timestamp", "-infinity", "-infinity"),
    ("timestamp", "294276-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999"),
    ("timestamptz", "2024-02-29 12:30:00+00", datetime(2024, 2, 29, 12, 30, tzinfo=UTC)),
    ("timestamptz", "10000-01-01 00:00:00.25+00", "10000-01-01 00:00:00.25+00"),
    ("timestamptz", "4714-11-24 00:00:00+00 BC", "4714-11-24 00:00:00+00 BC"),
    ("bytea", "\\x00ff", "\\x00ff"),
    ("interval", "P1DT2H", "P1DT2H"),
    ("_int4", "{1,NULL,3}", [1, None, 3]),
    ("_int4", "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
    ("_int4", "[0:1]={7,8}", "[0:1]={7,8}"),
    ("_int4", "{}", []),
    ("_bool", "{t,f}", [True, False]),
    ("_text", '{"a b",c,"NULL",""}', ["a b", "c", "NULL", ""]),
    ("_numeric(10:5)", "{1.00000,-2.50000}", [Decimal("1.00000"), Decimal("-2.50000")]),
    ("_timestamptz", '{"2024-02-29 12:30:00+00",infinity}', [datetime(2024, 2, 29, 12, 30, tzinfo=UTC), "infinity"]),
    ("_timestamptz", '{"2024-02-29 12:30:00+00",NULL}', [datetime(2024, 2, 29, 12, 30, tzinfo=UTC), None]),
    ("_date", "{-infinity,2024-02-29}", ["-infinity", date(2024, 2, 29)]),
]


def written(type_: str, text: str | None) -> tuple[str, bytes]:
    """A row of an id and a value under the schema that holds it: the plain one, if that does."""
    of = table("public.t", f"id! int4, v {type_}")
    rows = pa.RecordBatch.from_pydict({"id": pa.array(["1"]), "v": pa.array([text], pa.string())})
    data, misfits = encode_rows(rows, of, TYPES)
    if misfits.any():
        data, _ = encode_rows(rows, of, TYPES, widened=True)
    return row_schema(of, TYPES, widened=bool(misfits.any())).text, data[0].as_py()


@pytest.mark.parametrize(("type_", "text", "value"), VALUES)
def test_a_value_is_what_python_has_for_it_and_the_text_is_the_servers(type_, text, value):
    schema, datum = written(type_, text)
    row = Decoder(schema).row(datum)
    assert row == {"id": 1, "v": value}
    assert type(row["v"]) is type(value)
    assert list_reader(Schema(schema).after, TEXT)(datum, 0) == (["1", text], len(datum))


@pytest.mark.parametrize("type_", sorted({type_ for type_, _, _ in VALUES}))
def test_null_is_none_whatever_the_type(type_):
    schema, datum = written(type_, None)
    assert Decoder(schema).row(datum) == {"id": 1, "v": None}
    assert list_reader(Schema(schema).after, TEXT)(datum, 0)[0] == ["1", None]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"b": [1, {"c": null}], "a": "<é>"}', {"b": [1, {"c": None}], "a": "<é>"}),
        ("[1, 2.5, true]", [1, 2.5, True]),
        ('"x"', "x"),
        ("12345678901234567890123", 12345678901234567890123),
        ('{"a": 0.1, "b": 1.10}', {"a": 0.1, "b": 1.1}),
        # A float has no room for it.
        ('{"a": 1.00000000000000000001}', {"a": Decimal("1.00000000000000000001")}),
        ('{"a": 1e400}', {"a": Decimal("1e400")}),
    ],
)
@pytest.mark.parametrize("type_", ["json", "jsonb"])
def test_json_is_parsed_and_no_number_in_it_is_rounded(type_, text, value):
    schema, datum = written(type_, text)
    found = Decoder(schema).row(datum)["v"]
    assert found == value
    assert sorted(repr(found)) == sorted(repr(value))


def test_jsons_null_is_none_and_only_its_text_differs_from_sqls():
    schema, datum = written("jsonb", "null")
    assert Decoder(schema).row(datum)["v"] is None
    assert list_reader(Schema(schema).after, TEXT)(datum, 0)[0][1] == "null"


def canonical(type_: str, text: str | None) -> object:
    """What two texts of one value have in common."""
    if text is None or type_ == "jsonb":
        return text if text is None else json.loads(text)
    if type_ == "float8":
        return repr(float(text))
    return re.sub(r"(\.\d*?)0+$", r"\1", text).removesuffix(".") if type_ in ("timestamp", "time") else text


READERS = {
    is_widened: (Decoder(schema.text), list_reader(Schema(schema.text).after, TEXT))
    for is_widened in (False, True)
    for schema in [row_schema(WIDE, TYPES, widened=is_widened)]
}


# What the encoder passes on without a look, as a server would have written it.
VALID = {"n": {"-1e5": "-100000"}, "ns": {"{{a},{b}}": "{{1},{2}}"}, "is": {"{{a},{b}}": "{{1},{2}}"}}
VALID["days"] = {"{{a},{b}}": "{{2024-02-29},{infinity}}"}


def valid(row: dict[str, str | None]) -> dict[str, str | None]:
    return {name: VALID.get(name, {}).get(text or "", text) for name, text in row.items()}


@given(st.lists(WIDE_ROWS.map(valid), max_size=3))
def test_any_row_comes_back_as_the_values_and_the_texts_that_it_was_made_from(rows):
    names = [column.name for column in WIDE.columns]
    batch = pa.RecordBatch.from_pydict({name: pa.array([row[name] for row in rows], pa.string()) for name in names})
    types = {column.name: column.type_oid for column in WIDE.columns}
    for is_widened, (decoder, read_texts) in READERS.items():
        data, _ = encode_rows(batch, WIDE, TYPES, widened=is_widened)
        for row, datum in zip(rows, data.to_pylist(), strict=True):
            if datum is None:
                continue
            values = {name: expected(types[name], row[name]) for name in names}
            assert repr(decoder.row(datum)) == repr(values)
            texts, _ = read_texts(datum, 0)
            shown = [TYPES[types[name]].name for name in names]
            assert list(map(canonical, shown, texts)) == [canonical(TYPES[types[name]].name, row[name]) for name in names]


def expected(oid: int, text: str | None) -> object:
    if text is None:
        return None
    if TYPES[oid].name == "jsonb":
        # Objects come with their keys in order.
        return json.loads(text) if not isinstance(json.loads(text), dict) else dict(sorted(json.loads(text).items()))
    # Creek does not know it, and so it stays text.
    return text if TYPES[oid].name == "bytea" else to_python(TYPES, oid)(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (1e15, "1e+15"),
        (123456789012345680.0, "1.2345678901234568e+17"),
        (999999999999999.0, "999999999999999"),
        (1234567890123456.0, "1.234567890123456e+15"),
        (-1e15, "-1e+15"),
        (0.0001, "0.0001"),
        (1e-05, "1e-05"),
        (-0.0, "-0"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (5e-324, "5e-324"),
    ],
)
def test_a_double_is_written_as_the_server_does(value, text):
    assert float8_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.10000000149011612, "0.1"),
        (1000000.0, "1e+06"),
        (999999.0, "999999"),
        (16777216.0, "1.6777216e+07"),
        (-1234567.0, "-1.234567e+06"),
        (123456.7890625, "123456.79"),
        (1.401298464324817e-45, "1e-45"),
        (3.4028234663852886e38, "3.4028235e+38"),
        (-0.0, "-0"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_a_float_of_32_bits_is_written_with_as_few_digits_as_it_needs(value, text):
    assert float4_text(value) == text


@given(st.floats(width=32, allow_nan=False))
def test_no_float_of_32_bits_changes_by_being_written(value):
    from_text = float(float4_text(value))
    assert pa.array([from_text], pa.float32()) == pa.array([value], pa.float32())


@given(st.datetimes())
def test_instants_within_pythons_years_are_written_as_python_does(moment):
    microseconds = (moment - datetime(1970, 1, 1)) // (datetime.resolution)
    shown = moment.isoformat(" ")
    assert timestamp_text(microseconds) == (shown.rstrip("0") if moment.microsecond else shown)
    assert timestamptz_text(microseconds) == timestamp_text(microseconds) + "+00"
    assert date_text(microseconds // 86_400_000_000) == shown[:10]


def test_a_schema_of_creeks_first_years_spells_an_enum_out_wherever_it_is_used():
    enum = {"type": "enum", "name": "infinity_modifier", "symbols": ["infinity", "negative_infinity_ca5991f51367e3e4"]}
    day = ["null", {"type": "int", "logicalType": "date"}, enum]
    fields = [{"name": name, "type": day, "pgType": "date", "pgKey": False} for name in ("a", "b")]
    decoder = Decoder(json.dumps({"type": "record", "name": "t", "fields": fields}))
    assert decoder.row(bytes([2, 0, 4, 2])) == {"a": date(1970, 1, 1), "b": "-infinity"}


def test_a_column_that_creek_lists_once_for_each_of_its_indexes_is_one_column():
    field = {"name": "id", "type": "int", "pgType": "int4", "pgKey": True}
    decoder = Decoder(json.dumps({"type": "record", "name": "t", "fields": [field, field]}))
    assert decoder.row(bytes([2, 2])) == {"id": 1}


def test_named_types_are_found_by_their_namespace():
    enum = {"type": "enum", "name": "e", "symbols": ["infinity"]}
    fields = [{"name": "a", "type": enum, "pgType": "date"}, {"name": "b", "type": "e", "pgType": "date"}]
    record = {"type": "record", "name": "t", "namespace": "after", "fields": fields}
    decoder = Decoder(json.dumps(record))
    assert decoder.schema.record.name == "after.t"
    assert decoder.row(bytes([0, 0])) == {"a": "infinity", "b": "infinity"}


def test_a_name_that_avro_does_not_take_is_the_true_one_again():
    of = table("public.the.table", "id! int4, 1st% text")
    schema = row_schema(of, TYPES)
    assert Decoder(schema.text).row(bytes([2, 2, 2]) + b"x") == {"id": 1, "1st%": "x"}
    assert Decoder(schema.text).schema.record.name == "the.table"


def test_an_array_may_come_in_blocks_with_and_without_their_size():
    schema, _ = written("_int4", "{1}")
    blocks = bytes([2, 2]) + bytes([4, 2, 4]) + bytes([1, 2, 6]) + bytes([0])
    assert Decoder(schema).row(blocks) == {"id": 1, "v": [1, 2, 3]}


def test_bytes_for_a_numeric_that_has_no_scale_are_refused():
    schema, _ = written("numeric", "1")
    with pytest.raises(MessageError, match="'numeric' is written as bytes without a scale"):
        Decoder(schema).row(bytes([2, 2, 2, 7]))


@pytest.mark.parametrize("message", [b"", b"\xc3", b"\xc3\x01" + bytes(8), b"\xc3\x02" + bytes(20), b"EOF"])
def test_what_does_not_begin_as_a_message_is_refused(message):
    with pytest.raises(MessageError, match="not a Creek message"):
        decode_message(message)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '"int"',
        '{"type": "record", "name": "t"}',
        '{"type": "record", "name": "t", "fields": [{"name": "a", "type": "other"}]}',
    ],
)
def test_what_is_no_schema_of_a_table_is_refused(text):
    with pytest.raises(MessageError):
        Decoder(text)


def test_a_schema_with_another_envelope_is_refused():
    schema = json.loads(wal_schema(OTHER, TYPES, Generation.ONE).text)
    schema["fields"].insert(4, {"name": "more", "type": "string"})
    with pytest.raises(MessageError, match="other fields than Creek's messages"):
        Decoder(json.dumps(schema))


def test_the_schema_of_rows_does_not_decode_changes():
    decoder = Decoder(row_schema(OTHER, TYPES).text)
    with pytest.raises(MessageError, match="that of a snapshot"):
        decoder.wal(bytes(20))


@pytest.mark.parametrize("generation", Generation)
def test_a_message_that_ends_anywhere_too_early_or_late_is_refused(generation):
    decoder, datum = golden(generation)
    decoder.wal(datum)
    for cut in (*(datum[:end] for end in range(len(datum))), datum + b"\0"):
        with pytest.raises(MessageError):
            decoder.wal(cut)
    assert decoder.wal(datum).after == {"id": 1, "data": "test"}


ANY_DECODER = Decoder(wal_schema(WIDE, TYPES, Generation.ONE, widened=True).text)


@given(st.binary(max_size=80), st.integers(0, 40))
def test_any_bytes_at_all_are_a_message_or_refused(noise, at):
    decoder = ANY_DECODER
    _, begin = enveloped(OTHER, "t", None, None)
    for datum in (noise, begin[:-2] + b"\0\2" + noise, begin[:at] + noise + begin[at:]):
        try:
            found = decoder.wal(datum)
        except MessageError:
            continue
        assert isinstance(found, WalMessage)


def test_an_array_that_claims_to_be_huge_is_refused_at_once():
    schema, _ = written("_int4", "{1}")
    with pytest.raises(MessageError, match="more items than"):
        Decoder(schema).row(bytes([2, 2]) + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + bytes(4))
