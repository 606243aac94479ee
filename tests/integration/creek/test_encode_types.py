"""Every value of every type that a server has, on the wire and back, and compared by that server."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from psycopg import sql

from headwater.creek.encode import Encoded, encode_batch, encode_rows
from headwater.creek.names import Generation
from headwater.creek.schema import can_misfit, row_record, row_schema
from headwater.creek.types import Form, column_type
from headwater.model import Lsn
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.types import Kind, PgType
from headwater.postgres.types.literals import split_array
from tests.support.capture.recordings import batches
from tests.support.capture.type_samples import REJECTED_MOMENTS
from tests.support.capture.type_session import Session, open_session
from tests.support.creek import avro_reference as reference

# As many columns as fit into a page with room for values that are not small.
COLUMNS_PER_TABLE = 30


@pytest.fixture
def session(any_database: str) -> Iterator[Session]:
    with open_session(any_database) as session:
        yield session


def differing(session: Session, type_: PgType, typmod: int, texts: list[str], values: list[Any]) -> list[str]:
    """The texts that are another value when they have been read from the wire."""
    found = column_type(session.types, type_.oid, typmod)
    backs = [str(reference.text_of(found, value)) for value in values]
    if found.form is not Form.JSON:
        return session.differing(type_, texts, backs)
    load = _loaded_array if found.is_array else _loaded
    changed = [(text, back) for text, back in zip(texts, backs, strict=True) if text != back]
    return [f"{type_.name}: {text!r} became {back!r}" for text, back in changed if load(text) != load(back)]


def _loaded_array(text: str) -> Any:
    """Elements that are lists themselves as values, and dimensions as tuples."""

    def load(part: Any) -> Any:
        return tuple(map(load, part)) if isinstance(part, list) else None if part is None else _loaded(part)

    return load(split_array(text, ",", str))


def _loaded(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def test_every_value_of_every_type_is_held_by_its_tables_schema_or_the_widened_one(session):
    wrong, misfitting = [], set()
    for type_, texts in session.texts():
        table = Relation(1, "public", "t", "d", (RelationColumn("v", False, type_.oid, -1),))
        rows = pa.RecordBatch.from_pydict({"v": pa.array([*texts, None], pa.string())})
        plain, misfits = encode_rows(rows, table, session.types)
        widened, none = encode_rows(rows, table, session.types, widened=True)
        assert not none.any()
        assert not misfits[-1]
        assert plain.is_null().to_pylist() == misfits.tolist()
        for is_widened, data in ((False, plain), (True, widened)):
            schema = row_schema(table, session.types, widened=is_widened)
            read = {place: reference.read(schema.text, datum)["v"] for place, datum in enumerate(data.to_pylist()) if datum}
            assert read.pop(len(texts)) is None
            wrong += differing(session, type_, -1, [texts[place] for place in read], list(read.values()))
        if misfits.any():
            assert can_misfit(table, session.types) == ("v",)
            misfitting |= {(type_.name, texts[place]) for place in misfits.nonzero()[0]}
    assert wrong == []
    scalars = {(name, text) for name, text in misfitting if not name.startswith("_")}
    assert {name for name, _ in scalars} == {"numeric", "timestamp", "timestamptz"}
    assert {text.removesuffix("+00") for name, text in scalars if name != "numeric"} == set(REJECTED_MOMENTS)
    assert {"{NULL}"} < {text for name, text in misfitting if name == "_int4"}
    assert not any(text == "{}" for _, text in misfitting)


def test_every_value_of_every_type_comes_through_a_replication_stream(session):
    """Tables with names and columns that Avro does not take, read from a slot as the producer does."""
    tables = _make_tables(session)
    session.connection.execute("create publication pub for all tables")
    session.connection.execute("select pg_create_logical_replication_slot('hw', 'pgoutput')")
    for name, columns in tables.items():
        _insert(session, name, columns)
    query = """
        select data
          from pg_logical_slot_get_binary_changes('hw', null, null, 'proto_version', '1', 'publication_names', 'pub')
    """
    messages = [row[0] for row in session.connection.execute(query, binary=True)]
    found = [
        each
        for batch in batches(messages)
        for each in encode_batch(batch, session.types, database="d", generation=Generation.ONE, sent_at=1, previous=Lsn(0))
    ]
    assert {each.relation.name for each in found} == set(tables)
    wrong = []
    for each in found:
        record, columns = row_record(each.relation, session.types), tables[each.relation.name]
        rows = [after for _, after in _read(each)]
        for field in record.fields[1:]:
            type_, texts = columns[field.column]
            values = [row[field.name] for row in rows]
            assert values[len(texts) :] == [None] * (len(rows) - len(texts))
            wrong += differing(session, type_, -1, texts, values[: len(texts)])
    assert wrong == []


def test_typed_columns_of_tables_are_exact_to_their_last_digit(session):
    """Decimals of all lengths, with and without sign, in the first and the last unit that they have."""
    limits = [
        (1, 0),
        (2, 2),
        (9, 4),
        (18, 0),
        (18, 18),
        (19, 3),
        (38, 38),
        (39, 0),
        (120, 60),
        (1000, 1000),
        (5, -3),
        (2, 4),
    ]
    shown = sql.SQL(", ").join(sql.SQL("{} numeric({}, {})").format(sql.Identifier(f"n{p}_{s}"), p, s) for p, s in limits)
    session.connection.execute(sql.SQL("create table limits (id int primary key, {})").format(shown))
    insert = sql.SQL("insert into limits values (%s, {})").format(sql.SQL(", ").join([sql.SQL("%s::numeric")] * len(limits)))
    for place, sign in enumerate(("", "-")):
        values = [f"{sign}{10**p - 1}e{-s}" for p, s in limits]
        session.connection.execute(insert, [place, *values])
    columns = session.connection.execute(
        """
        select attname, atttypid, atttypmod
          from pg_attribute
         where attrelid = 'limits'::regclass and attnum > 1
         order by attnum
        """
    ).fetchall()
    table = Relation(1, "public", "limits", "d", tuple(RelationColumn(name, False, oid, mod) for name, oid, mod in columns))
    texts = {
        name: session.column(sql.SQL("select {} from limits order by id").format(sql.Identifier(name)))
        for name, _, _ in columns
    }
    rows = pa.RecordBatch.from_pydict({name: pa.array(each, pa.string()) for name, each in texts.items()})
    assert encode_rows(rows, table, session.types)[1].tolist() == [True, True]
    data, _ = encode_rows(rows, table, session.types, widened=True)
    read = [reference.read(row_schema(table, session.types, widened=True).text, datum) for datum in data.to_pylist()]
    for field in row_record(table, session.types).fields:
        backs = [reference.text_of(field.type, row[field.name]) for row in read]
        assert backs == texts[field.column]
        is_decimal = field.column not in ("n5_-3", "n2_4")
        assert [isinstance(row[field.name], bytes) for row in read] == [is_decimal] * 2


def _make_tables(session: Session) -> dict[str, dict[str, tuple[PgType, list[str]]]]:
    """Tables by name; of each column, its type and texts."""
    every = [(type_, texts) for type_, texts in session.texts() if _can_be_a_column(session, type_)]
    tables: dict[str, dict[str, tuple[PgType, list[str]]]] = {}
    for start in range(0, len(every), COLUMNS_PER_TABLE):
        part = every[start : start + COLUMNS_PER_TABLE]
        name = f"{start} of «types».x"
        tables[name] = {f"{type_.schema}.{type_.name}": (type_, texts) for type_, texts in part}
        columns = (
            sql.SQL("{} {}").format(sql.Identifier(column), sql.Identifier(type_.schema, type_.name))
            for column, (type_, _) in tables[name].items()
        )
        create = sql.SQL("create table {} (id int primary key, {})")
        session.connection.execute(create.format(sql.Identifier(name), sql.SQL(", ").join(columns)))
    return tables


def _can_be_a_column(session: Session, type_: PgType) -> bool:
    """Not rows of system tables, of which some have columns that no other table may have, nor arrays of pseudo-types."""
    element = session.types.get(type_.element, type_)
    is_row = Kind.COMPOSITE in (type_.kind, element.kind)
    is_of_known = type_.kind is not Kind.ARRAY or type_.element in session.types
    return is_of_known and not (is_row and element.schema in ("pg_catalog", "information_schema"))


def _insert(session: Session, name: str, columns: dict[str, tuple[PgType, list[str]]]) -> None:
    most = max(len(texts) for _, texts in columns.values())
    insert = sql.SQL("insert into {} values (%s, {})").format(
        sql.Identifier(name),
        sql.SQL(", ").join(sql.SQL("%s::{}").format(sql.Identifier(each.schema, each.name)) for each, _ in columns.values()),
    )
    for place in range(most):
        values = [texts[place] if place < len(texts) else None for _, texts in columns.values()]
        session.connection.execute(insert, [place, *values])


def _read(each: Encoded) -> Iterator[tuple[str, Any]]:
    """Operation and new row of each message, under the schema that it names."""
    texts = {schema.fingerprint: schema.text for schema in (each.schema, each.widened) if schema is not None}
    for payload in each.payloads.to_pylist():
        value = reference.read(texts[payload[2:10]], payload[10:])
        yield value["op"], value["after"]
