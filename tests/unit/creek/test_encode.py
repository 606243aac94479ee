"""Changes and rows to the wire: Creek's own packets, what each operation carries, order, and every value read back."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.creek.encode import Encoded, encode_batch, encode_read, encode_rows
from headwater.creek.framing import frame_all
from headwater.creek.names import Generation
from headwater.creek.schema import row_schema, wal_schema
from headwater.errors import DecodeError
from headwater.model import UNCHANGED, Lsn
from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.messages import Begin, Relation
from headwater.postgres.replication.protocol import POSTGRES_EPOCH
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.change_streams import streams
from tests.support.creek import avro_reference as reference
from tests.support.creek.avro_reference import (
    NUMERIC_12_2,
    OIDS,
    TYPES,
    relation,
)
from tests.support.creek.avro_vectors import (
    SENT_AT,
    WIDE,
    WIDE_ROWS,
    require_same_as_fastavro,
    require_told_in_order,
    values,
)

# PostgreSQL counts microseconds from 2000-01-01.
COMMITTED_AT = 1_700_000_000_000_000
MICROS = COMMITTED_AT - 946_684_800_000_000
LSN, PREVIOUS = Lsn.parse("0/17FA337"), Lsn.parse("0/17FA0E5")
OTHER = relation("other", ("id", "int4", True), ("data", "text", False))

GOLDEN = {
    Generation.ONE: (
        "000000000062c301f684f3395d900ce018396f547a4f563251444f413d0a64756d6d798080f281838985060e746573745f64620c7075626c69630a"
        "6f74686572f00712302f3137464130453512302f3137464133333700c084af8283898506000202020874657374"
    ),
    Generation.TWO: (
        "000000000058c301f869b592f6a3766b182d476d316b76616a646d733d0a64756d6d798080f281838985060e746573745f64620c7075626c69630a"
        "6f74686572f00712302f3137464133333700c084af8283898506000202020874657374"
    ),
}


def described(table: Relation) -> bytes:
    columns = [(column.name, column.type_oid, column.typmod, column.key) for column in table.columns]
    return write.relation(table.oid, table.name, columns, table.identity)


def transaction(*changes: bytes, lsn: int = LSN, xid: int = 504) -> list[bytes]:
    return [write.begin(lsn, MICROS, xid), *changes, write.commit(lsn, lsn + 8, MICROS)]


def batch_of(messages: Sequence[bytes], **parts: Any) -> Batch:
    data, bounds = lay_out(messages)
    return Batch(data, bounds, parts.pop("relations", {}), len(messages), Lsn(1), **parts)


def encoded(messages: Sequence[bytes], generation: Generation = Generation.ONE, **parts: Any) -> list[Encoded]:
    return encode_batch(
        batch_of(messages, **parts),
        TYPES,
        database="test_db",
        generation=generation,
        sent_at=SENT_AT,
        previous=PREVIOUS,
    )


def rows_of(each: Encoded) -> list[tuple[str, Any, Any]]:
    return [(value["op"], value["before"], value["after"]) for value in values(each)]


@pytest.mark.parametrize("generation", Generation)
def test_an_insert_is_the_golden_packet(generation):
    (found,) = encoded(transaction(described(OTHER), write.insert(OTHER.oid, ["1", "test"])), generation)
    assert [packet.hex() for packet in frame_all(found.payloads).to_pylist()] == [GOLDEN[generation]]
    assert found.ops.to_pylist() == ["c"]
    assert (found.schema, found.widened, found.unchanged) == (wal_schema(OTHER, TYPES, generation), None, None)
    assert found.relation == OTHER
    assert (found.places.commit_lsn.tolist(), found.places.xid.tolist()) == ([LSN], [504])


def test_the_envelope_tells_where_a_change_comes_from():
    (found,) = encoded(transaction(described(OTHER), write.insert(OTHER.oid, ["1", "test"])))
    (value,) = values(found)
    assert value["source"] == {
        "name": "dummy",
        "tx_at": COMMITTED_AT,
        "db": "test_db",
        "schema": "public",
        "table": "other",
        "tx_id": 504,
        "last_lsn": "0/17FA0E5",
        "lsn": "0/17FA337",
    }
    assert value["sent_at"] == SENT_AT


@pytest.mark.parametrize("generation", Generation)
def test_operations_carry_what_creeks_do(generation):
    oid = OTHER.oid
    (found,) = encoded(
        transaction(
            described(OTHER),
            write.insert(oid, ["1", "test"]),
            write.update(oid, ["1", "cool"]),
            write.update(oid, ["100", "cool"], ["1", None]),
            write.delete(oid, ["100", None]),
            write.truncate(oid),
            write.insert(oid, ["2", None]),
        ),
        generation,
    )
    assert rows_of(found) == [
        ("c", None, {"id": 1, "data": "test"}),
        ("u", {"id": 1}, {"id": 1, "data": "cool"}),
        ("u_pk", {"id": 1}, {"id": 100, "data": "cool"}),
        ("d", {"id": 100}, None),
        ("t", None, None),
        ("c", None, {"id": 2, "data": None}),
    ]
    assert found.ops.to_pylist() == ["c", "u", "u_pk", "d", "t", "c"]
    assert found.places.ordinal.tolist() == [0, 1, 2, 3, 4, 5]


def test_an_old_key_that_stayed_makes_an_update_of_the_key_all_the_same():
    """The server sends one that is stored out of line; Creek looks at nothing else."""
    (found,) = encoded(transaction(described(OTHER), write.update(OTHER.oid, ["1", "x"], ["1", None])))
    assert rows_of(found) == [("u_pk", {"id": 1}, {"id": 1, "data": "x"})]


def test_a_full_identity_sends_whole_old_rows_and_every_update_is_one_of_the_key():
    table = relation("whole", ("id", "int4", True), ("v", "text", True), identity="f")
    (found,) = encoded(
        transaction(
            described(table),
            write.update(table.oid, ["1", "b"], ["1", "a"], "O"),
            write.update(table.oid, ["1", UNCHANGED], [None, "a"], "O"),
            write.delete(table.oid, [None, "b"], "O"),
        )
    )
    assert rows_of(found) == [
        ("u_pk", {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
        ("u_pk", {"id": None, "v": "a"}, {"id": 1, "v": "a"}),
        ("d", {"id": None, "v": "b"}, None),
    ]
    assert found.unchanged is None


def test_columns_that_the_server_did_not_send_are_null_and_named():
    table = relation("big", ("id", "text", True), ("a, b", "text", False), ("ü", "text", False), ("c", "int4", False))
    (found,) = encoded(
        transaction(
            described(table),
            write.update(table.oid, ["1", UNCHANGED, UNCHANGED, "1"]),
            write.update(table.oid, ["1", "x", None, "2"]),
            write.update(table.oid, [UNCHANGED, None, UNCHANGED, "3"], ["long key", None, None, None]),
        )
    )
    assert found.unchanged is not None
    assert found.unchanged.to_pylist() == ["a%2C%20b,%C3%BC", None, "%C3%BC"]
    a, u = "a_x2C__x20_b", "_xC3__xBC_"
    assert rows_of(found) == [
        ("u", {"id": "1"}, {"id": "1", a: None, u: None, "c": 1}),
        ("u", {"id": "1"}, {"id": "1", a: "x", u: None, "c": 2}),
        ("u_pk", {"id": "long key"}, {"id": "long key", a: None, u: None, "c": 3}),
    ]


def test_changes_of_a_table_without_key_have_an_empty_key():
    table = relation("events", ("v", "text", False))
    (found,) = encoded(transaction(described(table), write.insert(table.oid, ["a"]), write.update(table.oid, ["b"])))
    assert rows_of(found) == [("c", None, {"v": "a"}), ("u", {}, {"v": "b"})]


def test_transactions_tell_which_one_came_before_them():
    insert = write.insert(OTHER.oid, ["1", None])
    messages = [
        *transaction(described(OTHER), insert, insert, lsn=Lsn.parse("1/0"), xid=5),
        *transaction(lsn=Lsn.parse("1/80000000"), xid=6),
        *transaction(insert, lsn=Lsn.parse("FF/DEADBEEF"), xid=2**32 - 1),
    ]
    (found,) = encoded(messages)
    sources = [value["source"] for value in values(found)]
    assert [(source["last_lsn"], source["lsn"], source["tx_id"]) for source in sources] == [
        ("0/17FA0E5", "1/0", 5),
        ("0/17FA0E5", "1/0", 5),
        ("1/80000000", "FF/DEADBEEF", 2**32 - 1),
    ]


def test_a_transaction_that_goes_on_has_the_one_before_it_from_the_caller():
    begin = Begin(LSN, POSTGRES_EPOCH, 7)
    relations = {OTHER.oid: described(OTHER)}
    messages = [write.insert(OTHER.oid, ["1", None]), write.commit(LSN, LSN + 8)]
    (found,) = encoded(
        [*messages, *transaction(write.insert(OTHER.oid, ["2", None]), lsn=LSN + 100)],
        begin=begin,
        first_ordinal=3,
        relations=relations,
    )
    sources = [value["source"] for value in values(found)]
    assert [(source["last_lsn"], source["lsn"]) for source in sources] == [
        (str(PREVIOUS), str(LSN)),
        (str(LSN), str(Lsn(LSN + 100))),
    ]
    assert found.places.ordinal.tolist() == [3, 0]


def test_a_table_that_was_altered_is_parted_there_and_stays_in_order():
    later = relation("other", ("id", "int4", True), ("data", "text", False), ("more", "int4", False))
    oid = OTHER.oid
    found = encoded(
        transaction(
            described(OTHER),
            write.insert(oid, ["1", "a"]),
            described(OTHER),
            write.update(oid, ["1", "b"]),
            described(later),
            write.insert(oid, ["2", "a", "5"]),
            described(OTHER),
            write.delete(oid, ["2", None]),
            write.insert(oid, ["3", "c"]),
        )
    )
    assert [(each.relation, each.ops.to_pylist()) for each in found] == [
        (OTHER, ["c", "u"]),
        (later, ["c"]),
        (OTHER, ["d", "c"]),
    ]
    assert [value["after"] for each in found for value in values(each)] == [
        {"id": 1, "data": "a"},
        {"id": 1, "data": "b"},
        {"id": 2, "data": "a", "more": 5},
        None,
        {"id": 3, "data": "c"},
    ]


def test_a_truncate_of_several_tables_is_a_message_for_each():
    second = Relation(16500, "public", "second", "d", OTHER.columns)
    found = encoded(transaction(described(OTHER), described(second), write.truncate(OTHER.oid, second.oid)))
    assert [(each.relation.name, each.ops.to_pylist(), each.places.ordinal.tolist()) for each in found] == [
        ("other", ["t"], [0]),
        ("second", ["t"], [1]),
    ]


def test_rows_that_do_not_fit_are_under_the_widened_schema_among_those_that_do():
    table = relation("price", ("id", "int4", True), ("amount", "numeric", False, NUMERIC_12_2), ("tags", "_int4", False))
    oid = table.oid
    (found,) = encoded(
        transaction(
            described(table),
            write.insert(oid, ["1", "1.50", "{1}"]),
            write.insert(oid, ["2", "NaN", "{2}"]),
            write.update(oid, ["2", "2.00", "{NULL}"]),
            write.insert(oid, ["3", None, "{}"]),
            write.delete(oid, ["3", None, None]),
        )
    )
    assert found.widened == wal_schema(table, TYPES, Generation.ONE, widened=True)
    plain, wide = found.schema.fingerprint, found.widened.fingerprint
    assert [payload[2:10] for payload in found.payloads.to_pylist()] == [plain, wide, wide, plain, plain]
    assert [after for _, _, after in rows_of(found)] == [
        {"id": 1, "amount": b"\0\x96", "tags": [1]},
        {"id": 2, "amount": "NaN", "tags": [2]},
        {"id": 2, "amount": b"\0\xc8", "tags": "{NULL}"},
        {"id": 3, "amount": None, "tags": []},
        None,
    ]


def test_a_key_that_does_not_fit_widens_old_and_new_rows_alike():
    table = relation("odd", ("id", "numeric", True), ("v", "int4", False))
    (found,) = encoded(
        transaction(
            described(table),
            write.insert(table.oid, ["1.5", "1"]),
            write.update(table.oid, ["1.5", "2"]),
            write.update(table.oid, ["NaN", "2"], ["1.5", None]),
            write.delete(table.oid, ["NaN", None]),
        )
    )
    assert rows_of(found) == [
        ("c", None, {"id": "1.5", "v": 1}),
        ("u", {"id": "1.5"}, {"id": "1.5", "v": 2}),
        ("u_pk", {"id": "1.5"}, {"id": "NaN", "v": 2}),
        ("d", {"id": "NaN"}, None),
    ]


def test_only_rows_with_a_value_in_a_numeric_without_limits_are_widened():
    table = relation("free", ("id", "int4", True), ("n", "numeric", False), ("d", "numeric", False, NUMERIC_12_2))
    rows: list[list[str | None]] = [["1", None, None], ["2", "5", "1.00"], ["3", None, "NaN"], ["4", None, "1.00"]]
    (found,) = encoded(transaction(described(table), *(write.insert(table.oid, row) for row in rows)))
    assert [value["after"] for value in values(found)] == [
        {"id": 1, "n": None, "d": None},
        {"id": 2, "n": "5", "d": b"\x64"},
        {"id": 3, "n": None, "d": "NaN"},
        {"id": 4, "n": None, "d": b"\x64"},
    ]
    plain = found.schema.fingerprint
    assert [payload[2:10] == plain for payload in found.payloads.to_pylist()] == [True, False, False, True]


@pytest.mark.parametrize("generation", Generation)
def test_rows_that_were_read_are_changes_of_their_own_kind(generation):
    table = relation("price", ("id", "int4", True), ("amount", "numeric", False, NUMERIC_12_2))
    rows = pa.RecordBatch.from_pydict({"id": ["1", "2", "3"], "amount": ["1.50", "NaN", None]})
    found = encode_read(
        rows,
        table,
        TYPES,
        database="test_db",
        generation=generation,
        sent_at=SENT_AT,
        until=LSN,
        read_at=COMMITTED_AT,
    )
    assert rows_of(found) == [
        ("r", None, {"id": 1, "amount": b"\0\x96"}),
        ("r", None, {"id": 2, "amount": "NaN"}),
        ("r", None, {"id": 3, "amount": None}),
    ]
    assert {(value["source"]["lsn"], value["source"]["tx_at"]) for value in values(found)} == {(str(LSN), COMMITTED_AT)}
    assert found.places.ordinal.tolist() == [0, 1, 2]


def test_no_rows_at_all_make_no_messages_when_a_table_is_read():
    rows = pa.RecordBatch.from_pydict({"id": pa.array([], pa.string()), "data": pa.array([], pa.string())})
    found = encode_read(
        rows, OTHER, TYPES, database="d", generation=Generation.ONE, sent_at=SENT_AT, until=LSN, read_at=COMMITTED_AT
    )
    assert (len(found), found.widened, found.unchanged) == (0, None, None)


def test_a_table_without_columns_has_changes_too():
    table = relation("bare")
    (found,) = encoded(transaction(described(table), write.insert(table.oid, []), write.insert(table.oid, [])))
    assert rows_of(found) == [("c", None, {})] * 2


def test_an_empty_batch_has_no_messages():
    assert encoded([]) == []
    assert encoded(transaction()) == []


def test_a_value_that_is_none_of_its_type_is_named_with_its_place():
    messages = transaction(described(OTHER), write.insert(OTHER.oid, ["1", None]), write.insert(OTHER.oid, ["x", None]))
    with pytest.raises(DecodeError, match=r"at 0/17FA337: column 'id' of public\.other"):
        encoded(messages)


def test_a_key_without_value_is_refused():
    with pytest.raises(DecodeError, match=r"column 'id' of public\.other: .*has no value"):
        encoded(transaction(described(OTHER), write.insert(OTHER.oid, [None, "x"])))


@given(streams(), st.sampled_from(Generation))
def test_any_stream_of_changes_is_told_whole_and_in_order(messages: list[bytes], generation: Generation) -> None:
    require_told_in_order(messages, generation)


@given(st.lists(WIDE_ROWS, max_size=6))
def test_vectors_hold_what_fastavro_writes_row_by_row(rows: list[dict[str, str | None]]) -> None:
    require_same_as_fastavro(rows)


def test_rows_of_no_columns_or_none_at_all_are_encoded():
    empty = relation("empty")
    data, misfits = encode_rows(pa.RecordBatch.from_pydict({}), empty, TYPES)
    assert (data.to_pylist(), misfits.tolist()) == ([], [])
    names = [column.name for column in WIDE.columns]
    data, misfits = encode_rows(pa.RecordBatch.from_pydict({name: pa.array([], pa.string()) for name in names}), WIDE, TYPES)
    assert (data.to_pylist(), misfits.tolist()) == ([], [])


def test_snapshots_have_the_types_that_creek_drops_there_as_text():
    table = relation("raw", ("id", "int4", True), ("b", "bytea", False), ("i", "interval", False), ("r", "int4range", False))
    rows = pa.RecordBatch.from_pydict({"id": ["1"], "b": ["\\x00ff"], "i": ["P1D"], "r": ["[1,2)"]})
    data, misfits = encode_rows(rows, table, TYPES)
    assert not misfits.any()
    assert reference.read(row_schema(table, TYPES).text, data[0].as_py()) == {
        "id": 1,
        "b": "\\x00ff",
        "i": "P1D",
        "r": "[1,2)",
    }
    assert OIDS["bytea"] == 17
