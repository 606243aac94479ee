"""The statements about Creek's own objects, and about what a publication sends, typed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.creek")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A row of `_creek.avro_schemas`; `source` is the table, as `schema.table`."""

    fingerprint: str
    schema: str
    source: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SentTable:
    """A table that a publication sends: its columns, by name, and whether it is there by its own name."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: Sequence[str]
    is_named: bool


def save_schemas(fingerprints: Sequence[str], schemas: Sequence[str], sources: Sequence[str]) -> Statement[str]:
    return SQL["save_schemas"].bind(str, fingerprints=list(fingerprints), schemas=list(schemas), sources=list(sources))


def find_schema(fingerprint: str) -> Statement[StoredSchema]:
    return SQL["find_schema"].bind(StoredSchema, fingerprint=fingerprint)


def has_store() -> Statement[bool]:
    return SQL["has_store"].bind(bool)


def list_published(publication: str) -> Statement[SentTable]:
    return SQL["list_published"].bind(SentTable, publication=publication)
