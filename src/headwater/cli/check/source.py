"""What there is at a source: looked at once, then judged by the checks."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwater.cli.check.finding import Finding, Level, ok, refused
from headwater.cli.check.replication import check_creation, check_pooler, check_publication, check_replication, check_slot
from headwater.cli.check.server import check_server
from headwater.cli.check.tables import Database, check_left_out, check_table
from headwater.errors import SourceError
from headwater.postgres.catalog import (
    Table,
    list_columns,
    list_rights,
    list_tables,
    load_types,
    parse_pattern,
    read_server,
    select_tables,
)
from headwater.postgres.connect import Connection
from headwater.postgres.replication.publication import Found, find_publication
from headwater.postgres.replication.slot import Slot, find_slot
from headwater.postgres.types.registry import Types


@dataclass(frozen=True, slots=True)
class Looked:
    """A database as it was found: `chosen` are the wanted tables, `missing` says which patterns stand for none."""

    database: Database
    slot: Slot | None
    publication: Found | None
    chosen: Sequence[Table]
    missing: Sequence[Finding]
    left_out: Sequence[Table]


def look_at(connection: Connection, patterns: Sequence[str], slot: str, publication: str) -> Looked:
    """What the checks judge; without patterns, the tables are those that the publication has."""
    found = find_publication(connection, publication) if publication else None
    tables = list_tables(connection)
    chosen, missing = _select(tables, patterns) if patterns else (_published(found, tables), [])
    oids = [table.oid for table in chosen]
    database = Database(
        server=read_server(connection),
        tables=tables,
        columns=list_columns(connection, oids),
        rights=list_rights(connection, oids),
        types=Types.builtin().extended(load_types(connection)),
        publishes_generated=found is not None and found.generated_columns,
    )
    existing = find_slot(connection, slot) if slot else None
    return Looked(database, existing, found, chosen, missing, _left_out(tables, patterns, chosen))


def check_source(
    connection: Connection, url: str, patterns: Sequence[str], slot: str, publication: str
) -> Iterator[Finding]:
    """All findings about a database that may be captured; the slot and the publication need not have names yet."""
    looked = look_at(connection, patterns, slot, publication)
    server = looked.database.server
    yield from check_way(connection, url, looked)
    if slot:
        yield check_slot(looked.slot, slot, server.database)
    yield from looked.missing
    if publication:
        yield from check_publication(
            publication, looked.publication, looked.chosen, looked.database.tables, server, looked.database.rights
        )
    else:
        # Without a name it may well be there already, made by somebody who may.
        for finding in check_creation("publication", looked.chosen, server, looked.database.rights):
            yield dataclasses.replace(finding, level=Level.WARNING)
    yield from check_chosen(looked)
    if not patterns and not publication:
        yield ok("tables", "none was named; name some to have their keys, rights and types looked at")
    yield from check_left_out(looked.left_out)


def check_way(connection: Connection, url: str, looked: Looked) -> Iterator[Finding]:
    """The findings about the server and the way to it."""
    server = looked.database.server
    yield check_pooler(connection)
    yield check_replication(url, server)
    yield from check_server(server, needs_slot=looked.slot is None)


def check_chosen(looked: Looked) -> Iterator[Finding]:
    for table in looked.chosen:
        yield from check_table(table, looked.database)


def _select(tables: Sequence[Table], patterns: Sequence[str]) -> tuple[list[Table], list[Finding]]:
    """The tables that the patterns stand for, and what is wrong with patterns that stand for none."""
    found: list[str] = []
    missing: list[Finding] = []
    for pattern in patterns:
        try:
            select_tables(tables, [pattern])
            found.append(pattern)
        except SourceError as exc:
            missing.append(refused(f"table {pattern}", exc))
    return select_tables(tables, found), missing


def _published(found: Found | None, tables: Sequence[Table]) -> list[Table]:
    """The tables that a publication has now."""
    if found is None:
        return []
    return [
        table
        for table in tables
        if table.oid in found.tables
        or (table.is_capturable and not table.is_partition and (found.all_tables or table.schema in found.schemas))
    ]


def _left_out(tables: Sequence[Table], patterns: Sequence[str], chosen: Sequence[Table]) -> list[Table]:
    taken, wild = {table.oid for table in chosen}, list(map(parse_pattern, patterns))
    return [table for table in tables if table.oid not in taken and any(pattern.matches(table) for pattern in wild)]
