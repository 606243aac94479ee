"""Every type that a server has, from its text to Python, JSON and Arrow, and back to what that server takes for the same."""

import csv
import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from importlib.resources import files
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from headwater.postgres.types import Kind, Types, arrow_type, from_text, to_json, to_python, to_text
from tests.support.capture.type_samples import NO_INPUT, REJECTED_MOMENTS
from tests.support.capture.type_session import Session, open_session

# The Gregorian calendar repeats itself after so many days, and this is the number of 1970-01-01 from 0001-01-01.
DAYS_OF_400_YEARS, DAYS_BEFORE_1970 = 146_097, 719_162


@pytest.fixture
def session(any_database: str) -> Iterator[Session]:
    with open_session(any_database) as session:
        yield session


def text_of_json(types: Types, oid: int, value: Any) -> str:
    """The server's text of a decoded fragment, by the rule; numbers are expected as the text that they had."""
    type_, _ = types.resolve(oid)
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, list) and type_.is_vector:
        return " ".join(value)
    if isinstance(value, list):
        return array_text(types, type_.element, types.delimiter(type_), value)
    if isinstance(value, dict):
        parts = (value[field.name] for field in type_.fields)
        texts = zip(type_.fields, parts, strict=True)
        return (
            "("
            + ",".join("" if part is None else quoted(text_of_json(types, field.oid, part)) for field, part in texts)
            + ")"
        )
    assert isinstance(value, str)
    return value


def array_text(types: Types, element: int, delimiter: str, values: list[Any]) -> str:
    parts = []
    for value in values:
        if value is None:
            parts.append("NULL")
        elif isinstance(value, list):
            parts.append(array_text(types, element, delimiter, value))
        else:
            parts.append(quoted(text_of_json(types, element, value)))
    return "{" + delimiter.join(parts) + "}"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def loaded(fragment: str) -> Any:
    return json.loads(fragment, parse_float=str, parse_int=str)


def text_of_arrow(types: Types, oid: int, array: pa.Array, at: int) -> str:
    """The server's text of a stored value, by the rule."""
    type_, _ = types.resolve(oid)
    if pa.types.is_date(array.type):
        return text_of_days(array.view(pa.int32())[at].as_py())
    if pa.types.is_time(array.type):
        return text_of_clock(array.view(pa.int64())[at].as_py())
    if pa.types.is_timestamp(array.type):
        return text_of_microseconds(array.view(pa.int64())[at].as_py(), "+00" if array.type.tz else "")
    value = array[at].as_py()
    if type_.is_list or type_.kind is Kind.COMPOSITE:
        return text_of_json(types, oid, loaded(value))
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, float) and pa.types.is_float32(array.type):
        return str(np.float32(value))
    return "\\x" + value.hex() if isinstance(value, bytes) else str(value)


def text_of_days(days: int) -> str:
    if abs(days + 0.5) > 2**31 - 1:
        return "infinity" if days > 0 else "-infinity"
    cycles, rest = divmod(days + DAYS_BEFORE_1970, DAYS_OF_400_YEARS)
    day = date.fromordinal(rest + 1)
    year = day.year + 400 * cycles
    return f"{year:04}{day.isoformat()[4:]}" if year > 0 else f"{1 - year:04}{day.isoformat()[4:]} BC"


def text_of_clock(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}".rstrip("0").rstrip(".")


def text_of_microseconds(microseconds: int, offset: str) -> str:
    if microseconds in (2**63 - 1, -(2**63)):
        return "infinity" if microseconds > 0 else "-infinity"
    days, rest = divmod(microseconds, 86_400_000_000)
    day, _, era = text_of_days(days).partition(" ")
    return f"{day} {text_of_clock(rest)}{offset}" + (" BC" if era else "")


def test_packaged_types_are_the_servers_own(any_database):
    package = files("headwater.postgres.types")
    with psycopg.connect(any_database) as connection:
        cursor = connection.execute(package.joinpath("builtin.sql").read_bytes())
        found = [["" if value is None else str(value) for value in row] for row in cursor]
    header, *packaged = csv.reader(package.joinpath("builtin.csv").read_text().splitlines())
    assert header == ["oid", "name", "kind", "element", "delimiter"]
    assert packaged == found


def test_every_type_has_samples_unless_it_has_no_input(session):
    without = {oid for oid, samples in session.samples.items() if samples is None}
    assert [session.types[oid].name for oid in without] == []
    empty = {session.types[oid].name for oid, samples in session.samples.items() if samples == []}
    assert empty - {"xml"} == set(NO_INPUT)


def test_types_without_input_indeed_have_none(session):
    for name in NO_INPUT:
        type_ = next(type_ for type_ in session.types.values() if type_.name == name)
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            session.printed(type_, ["1"])


def test_every_type_goes_to_python_and_back_without_loss(session):
    differing = []
    for type_, texts in session.texts():
        read, write = to_python(session.types, type_.oid), to_text(session.types, type_.oid)
        differing += session.differing(type_, texts, [write(read(text)) for text in texts])
    assert differing == []


def test_every_type_goes_to_json_and_back_without_loss(session):
    differing = []
    for type_, texts in session.texts():
        write = to_json(session.types, type_.oid)
        backs = [text_of_json(session.types, type_.oid, loaded(write(text))) for text in texts]
        differing += session.differing(type_, texts, backs)
    assert differing == []


def test_every_type_goes_to_arrow_and_back_without_loss(session):
    differing, rejected_texts = [], set()
    for type_, texts in session.texts():
        array, rejected = from_text(pa.array([*texts, None], pa.string()), session.types, type_.oid)
        assert array.type == arrow_type(session.types, type_.oid)
        assert array.is_null().to_pylist() == [place in (*rejected, len(texts)) for place in range(len(texts) + 1)]
        held = [place for place in range(len(texts)) if place not in rejected]
        backs = [text_of_arrow(session.types, type_.oid, array, place) for place in held]
        differing += session.differing(type_, [texts[place] for place in held], backs)
        rejected_texts |= {(session.types.resolve(type_.oid)[0].name, texts[place]) for place in rejected}
    assert differing == []
    assert rejected_texts == {
        ("numeric", "NaN"),
        *(("timestamp", moment) for moment in REJECTED_MOMENTS),
        *(("timestamptz", f"{moment}+00") for moment in REJECTED_MOMENTS),
    }


def test_dates_and_times_in_json_are_as_the_server_writes_them(session):
    for type_, texts in session.texts():
        if type_.builtin_name in ("date", "time", "timestamp", "timestamptz", "bool", "int8"):
            fragments = [to_json(session.types, type_.oid)(text) for text in texts]
            assert fragments == session.printed(type_, texts, function="to_json")


def test_rows_of_system_tables_come_back_as_they_were(session):
    """Real rows, with values that the server does not read back: then the text itself must be the same."""
    tables = session.connection.execute(
        """
        select class.relname, type.oid
          from pg_catalog.pg_class as class
          join pg_catalog.pg_type as type on type.typrelid = class.oid
         where class.relkind = 'r' and class.relnamespace = 'pg_catalog'::regnamespace
        """
    ).fetchall()
    seen = 0
    for table, oid in tables:
        query = sql.SQL("select each from {} as each limit 50").format(sql.Identifier("pg_catalog", table))
        texts = session.column(query)
        read, write = to_python(session.types, oid), to_text(session.types, oid)
        assert [write(read(text)) for text in texts] == texts
        seen += len(texts)
    assert seen > 1000


def test_types_of_users_nest_in_each_other(session):
    """A row of a table with a dropped column, holding composites, enums, domains over domains and ranges over both."""
    session.connection.execute(
        """
        insert into shipment values (1, row(
            array[row('a, b', '{x,NULL}', '{1.5}', '{happy}', 'null', '[sad,happy]', 'infinity')]::item[],
            null, '{[a,b)}', '{x,y}', array['{p,q}'::names], row(), row(null)
        )::parcel, 'NaN')
        """
    )
    oid = session.connection.execute("select oid from pg_type where typname = 'shipment'").fetchone()[0]
    (text,) = session.column(sql.SQL("select shipment from shipment").format())
    item = {
        "the Name": "a, b",
        "tags": ["x", None],
        "prices": [Decimal("1.50")],
        "moods": ["happy"],
        "it's": "null",
        "span": Range("sad", "happy", "[]"),
        "at": "infinity",
    }
    parcel = {
        "items": [item],
        "first_item": None,
        "spans": Multirange([Range("a", "b")]),
        "labels": ["x", "y"],
        "all_labels": ["{p,q}"],
        "none": {},
        "one": {"only_field": None},
    }
    value: Any = to_python(session.types, oid)(text)
    assert str(value.pop("costs")) == "NaN"
    assert value == {"id": 1, "parcel": parcel}


def test_numeric_column_rejects_what_its_decimal_cannot_hold(session):
    session.connection.execute("create table price (id int, amount numeric(10, 2), fee fee, free numeric)")
    session.connection.execute("insert into price values (1, 12345678.9, 0.005, 1e40), (2, 'NaN', 'NaN', 'NaN')")
    columns = session.connection.execute(
        "select attname, atttypid, atttypmod from pg_attribute where attrelid = 'price'::regclass and attnum > 1"
    ).fetchall()
    found = {}
    for name, oid, typmod in columns:
        texts = session.column(sql.SQL("select {} from price order by id").format(sql.Identifier(name)))
        array, rejected = from_text(pa.array(texts), session.types, oid, typmod)
        found[name] = (str(arrow_type(session.types, oid, typmod)), array.cast(pa.string()).to_pylist(), rejected)
    assert found == {
        "amount": ("decimal128(10, 2)", ["12345678.90", None], (1,)),
        "fee": ("decimal128(10, 2)", ["0.01", None], (1,)),
        "free": ("string", ["1" + "0" * 40, "NaN"], ()),
    }
