"""A connection set as our replication connections are, with all types of its database."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from headwater.postgres.catalog import load_types
from headwater.postgres.types import PgType, Types
from tests.support.capture.type_samples import NO_INPUT, Samples

SETTINGS = "-c datestyle=ISO -c intervalstyle=iso_8601 -c timezone=UTC -c extra_float_digits=1 -c bytea_output=hex"


@dataclass(frozen=True, slots=True)
class Session:
    """`samples` is by oid of every type that is none of the pseudo-types; None where there is no sample."""

    connection: psycopg.Connection[Any]
    types: Types
    samples: dict[int, list[str] | None]

    def texts(self) -> Iterator[tuple[PgType, list[str]]]:
        """Each type that has samples, with the server's own text of them."""
        for oid, samples in self.samples.items():
            if samples:
                yield self.types[oid], self.printed(self.types[oid], samples)

    def printed(self, type_: PgType, texts: Sequence[str], function: str = "") -> list[str]:
        """The texts, read by the server as values of the type and written again, or what a function makes of them."""
        name = sql.Identifier(type_.schema, type_.name)
        each = [sql.SQL("({}, %s::{})").format(place, name) for place in range(len(texts))]
        call = sql.SQL("{}(value)").format(sql.Identifier(function)) if function else sql.SQL("value")
        query = sql.SQL("select {} from (values {}) as given (place, value) order by place")
        return self.column(query.format(call, sql.SQL(", ").join(each)), texts)

    def column(self, query: sql.Composed, parameters: Sequence[str] = ()) -> list[str]:
        """The only column of a result as the types' output functions write it, which a cast to text does not always do."""
        cursor = self.connection.execute(query, parameters or None)
        assert cursor.pgresult is not None
        raw = (cursor.pgresult.get_value(row, 0) for row in range(cursor.pgresult.ntuples))
        return [value.decode() for value in raw if value is not None]

    def differing(self, type_: PgType, texts: Sequence[str], backs: Sequence[str]) -> list[str]:
        """The texts whose value is another one after a conversion to something else and back."""
        changed = [(text, back) for text, back in zip(texts, backs, strict=True) if text != back]
        again = self.printed(type_, [back for _, back in changed]) if changed else []
        return [
            f"{type_.schema}.{type_.name}: {text!r} became {back!r}"
            for (text, back), seen in zip(changed, again, strict=True)
            if seen != text
        ]


@contextmanager
def open_session(url: str) -> Iterator[Session]:
    """A session in a database in which `user_types.sql` has been run."""
    with psycopg.connect(url, options=SETTINGS, autocommit=True, client_encoding="utf8") as connection:
        connection.execute(Path(__file__).with_name("user_types.sql").read_bytes())
        oids = [oid for (oid,) in connection.execute("select oid from pg_catalog.pg_type where typtype <> 'p' order by oid")]
        types = Types.builtin().extended(load_types(connection, oids))
        samples = Samples(types, _labels(connection), {**NO_INPUT, **_unsupported(connection)})
        yield Session(connection, types, {oid: samples.of(oid) for oid in oids})


def _labels(connection: psycopg.Connection[Any]) -> dict[int, list[str]]:
    query = "select enumtypid, array_agg(enumlabel::text order by enumsortorder) from pg_catalog.pg_enum group by enumtypid"
    return dict(connection.execute(query).fetchall())


def _unsupported(connection: psycopg.Connection[Any]) -> dict[str, str]:
    try:
        connection.execute("select '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return {"xml": "the server was built without libxml"}
    return {}
