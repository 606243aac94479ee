"""The command: gather what the checks look at, and print what they find."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from headwater.cli.check.finding import Finding, Level, ok, refused
from headwater.cli.check.replication import check_creation, check_pooler, check_publication, check_replication, check_slot
from headwater.cli.check.server import check_server
from headwater.cli.check.tables import Database, check_left_out, check_table
from headwater.cli.config import Json, Url
from headwater.cli.output import print_json, print_table
from headwater.cli.session import session
from headwater.errors import SourceError
from headwater.postgres.catalog import (
    Server,
    Table,
    list_columns,
    list_rights,
    list_tables,
    load_types,
    parse_pattern,
    read_server,
    select_tables,
)
from headwater.postgres.connect import Connection, describe
from headwater.postgres.replication.publication import Found, find_publication
from headwater.postgres.replication.slot import check_slot_name, find_slot
from headwater.postgres.types.registry import Types

_STYLES = {Level.OK: "", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def check(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE", help="Tables to capture: orders, sales.orders, 'public.*', '\"Order Items\"'."),
    ] = None,
    slot: Annotated[str, typer.Option(metavar="NAME", show_default=False, help="The slot that capture will use.")] = "",
    publication: Annotated[
        str, typer.Option(metavar="NAME", show_default=False, help="The publication that capture will use.")
    ] = "",
    url: Url = "",
    json: Json = False,
) -> None:
    """Look for whatever would stop the capture of a database, and say what to do about it.

    Nothing is changed. Looks at the server's settings, at the rights of the user, at the way there (a pooler does not carry
    replication), and, for the tables that are named, at keys, replica identity, rights and column types.

    The exit code is 1 if there is an error. Warnings are worth reading, but do not stop capture.

    Examples:

        headwater check --url postgresql://capture@db.example.com/shop
        headwater check 'public.*' sales.orders --slot headwater_shop --publication headwater_shop
        HEADWATER_URL=postgresql:///shop headwater check orders --json
    """
    if slot:
        check_slot_name(slot)
    with session(url) as connection:
        findings = list(_findings(connection, url, tables or [], slot, publication))
    _print(describe(url), findings, as_json=json)
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(1)


def _findings(connection: Connection, url: str, patterns: Sequence[str], slot: str, publication: str) -> Iterator[Finding]:
    server = read_server(connection)
    yield check_pooler(connection)
    yield check_replication(url, server)
    existing = find_slot(connection, slot) if slot else None
    yield from check_server(server, needs_slot=existing is None)
    if slot:
        yield check_slot(existing, slot, server.database)
    yield from _table_findings(connection, server, patterns, publication)


def _table_findings(connection: Connection, server: Server, patterns: Sequence[str], publication: str) -> Iterator[Finding]:
    found = find_publication(connection, publication) if publication else None
    tables = list_tables(connection)
    chosen, missing = _select(tables, patterns) if patterns else (_published(found, tables), [])
    yield from missing
    rights = list_rights(connection, [table.oid for table in chosen])
    if publication:
        yield from check_publication(publication, found, chosen, tables, server, rights)
    else:
        # Without a name it may well be there already, made by somebody who may.
        for finding in check_creation("publication", chosen, server, rights):
            yield dataclasses.replace(finding, level=Level.WARNING)
    database = Database(
        server=server,
        tables=tables,
        columns=list_columns(connection, [table.oid for table in chosen]),
        rights=rights,
        types=Types.builtin().extended(load_types(connection)),
        publishes_generated=found is not None and found.generated_columns,
    )
    for table in chosen:
        yield from check_table(table, database)
    if not patterns and not publication:
        yield ok("tables", "none was named; name some to have their keys, rights and types looked at")
    yield from check_left_out(_left_out(tables, patterns, chosen))


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


def _print(server: str, findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"server": server, "findings": [dataclasses.asdict(finding) for finding in findings], **_counts(findings)}
        )
        return
    if sys.stdout.isatty():
        rows = [(finding.level, finding.subject, finding.found, finding.remedy) for finding in findings]
        print_table(("", "looked at", "found", "what to do"), rows, [_STYLES[finding.level] for finding in findings])
    else:
        for finding in findings:
            typer.echo(_as_text(finding))
    counts = ", ".join(f"{kind}: {count}" for kind, count in _counts(findings).items())
    typer.echo(f"\n{server} has {counts}")


def _as_text(finding: Finding) -> str:
    """For pipes and files, where a line may be as long as it likes, and should hold all that belongs together."""
    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    return f"{finding.level:8} {finding.subject}: {finding.found}{remedy}"


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    levels = [finding.level for finding in findings]
    return {"errors": levels.count(Level.ERROR), "warnings": levels.count(Level.WARNING)}
