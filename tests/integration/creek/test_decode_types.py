"""Every value of every type that a server has, from the wire: as the text that the server wrote, and as a Python value."""

import json
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest

from headwater.creek.decode import Decoder, Schema
from headwater.creek.decode.forms import TEXT, type_oids
from headwater.creek.decode.rows import list_reader
from headwater.creek.encode import encode_rows
from headwater.creek.schema import row_schema
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.types import PgType, to_python
from tests.support.capture.type_session import Session, open_session


@pytest.fixture
def session(any_database: str) -> Iterator[Session]:
    with open_session(any_database) as session:
        yield session


def decoded(session: Session, type_: PgType, texts: list[str], *, widened: bool) -> Iterator[tuple[str, str, object, str]]:
    """Of each text that the schema holds: itself, what was read as text and as a value, and the type that Creek tells."""
    table = Relation(1, "public", "t", "d", (RelationColumn("v", False, type_.oid, -1),))
    schema = row_schema(table, session.types, widened=widened).text
    decoder, read_texts = Decoder(schema), list_reader(Schema(schema).after, TEXT)
    rows = pa.RecordBatch.from_pydict({"v": pa.array(texts, pa.string())})
    data, _ = encode_rows(rows, table, session.types, widened=widened)
    (field,) = decoder.schema.after.fields
    for text, datum in zip(texts, data.to_pylist(), strict=True):
        if datum is not None:
            (back,), end = read_texts(datum, 0)
            assert back is not None
            assert end == len(datum)
            yield text, back, decoder.row(datum)["v"], field.pg_type


@pytest.mark.timeout(60)
def test_every_value_of_every_type_is_read_as_the_server_wrote_it(session):
    wrong, seen = [], 0
    for type_, texts in session.texts():
        for widened in (False, True):
            for text, back, value, pg_type in decoded(session, type_, texts, widened=widened):
                seen += 1
                is_json = pg_type.removeprefix("_") in ("json", "jsonb")
                if back != text and not (is_json and same_json(session, type_, text, back)):
                    wrong.append(f"{type_.name}: {text!r} became {back!r}")
                if not is_json and repr(value) != repr(to_python(session.types, type_oids()[pg_type])(text)):
                    wrong.append(f"{type_.name}: {text!r} became {value!r}")
                if pg_type in ("json", "jsonb") and repr(sorted_json(value)) != repr(sorted_json(loaded(text))):
                    wrong.append(f"{type_.name}: {text!r} became {value!r}")
    assert wrong == []
    assert seen > 1000


def same_json(session: Session, type_: PgType, text: str, back: str) -> bool:
    """Creek writes objects in a form of its own, so only the values are the same."""
    if type_.name.startswith("_"):
        return elements(session, type_, text) == elements(session, type_, back)
    return bool(exact(text) == exact(back))


def elements(session: Session, type_: PgType, text: str) -> object:
    return exact_all(to_python(session.types, type_.oid)(text))


def exact_all(value: object) -> object:
    if isinstance(value, list):
        return [exact_all(each) for each in value]
    return exact(value) if isinstance(value, str) else value


def exact(text: str) -> object:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def loaded(text: str) -> object:
    """As Python's json reads it, but for numbers that a float would change."""
    return json.loads(text, parse_float=lambda number: float(number) if is_exact(number) else Decimal(number))


def is_exact(number: str) -> bool:
    return Decimal(number) == Decimal(repr(float(number))) if abs(Decimal(number)) < Decimal("1e308") else False


def sorted_json(value: object) -> object:
    if isinstance(value, dict):
        return {key: sorted_json(value[key]) for key in sorted(value)}
    return [sorted_json(each) for each in value] if isinstance(value, list) else value
