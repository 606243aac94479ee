"""`headwater tables` and `headwater snapshot`: which tables a pipeline has, and which are to be read as a whole."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import psycopg
import typer

from headwater.capture.tables import Name, PipelineTable, TableStore, prepare_tables
from headwater.cli.config import File, Json
from headwater.cli.loading import follow_loading
from headwater.cli.output import print_json, print_table
from headwater.cli.pipeline import load_pipeline
from headwater.errors import SettingsError
from headwater.postgres.catalog import Table, list_tables, parse_pattern, select_tables
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.publication import require_identity

if TYPE_CHECKING:
    from headwater.spark.settings import PipelineSettings

Tables = Annotated[
    list[str],
    typer.Argument(metavar="TABLE...", help="Tables, as schema.table; a pattern such as 'sales.*' stands for many."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when the rows have been delivered; shows how far it is.")]

tables = typer.Typer(invoke_without_command=True)


@tables.callback()
def default(context: typer.Context, file: File = None, json: Json = False) -> None:
    """Show the tables of a pipeline, add some to it while it runs, or take some out.

    A table that is added is published, read as a whole, and followed; the others go on meanwhile. One that is taken out is
    left as it is at the sinks. Tables that the pipeline file names by a pattern are added by themselves when they are made.

    Examples:

        headwater tables
        headwater tables add sales.refunds --wait
        headwater tables remove sales.refunds
    """
    if context.invoked_subcommand is None:
        show(file, json)


@tables.command("list")
def show(file: File = None, json: Json = False) -> None:
    """Show the tables of a pipeline: how each is followed, and what keeps one from being read."""
    settings = load_pipeline(file)
    with _store(settings) as store:
        found = store.tables()
    if json:
        print_json([_plain(table) for table in found])
    elif not found:
        typer.echo(f"pipeline {settings.name} has not run yet, so nothing is known of its tables")
    else:
        rows = [(f"{one.schema}.{one.name}", _state(one), one.error or "") for one in found]
        print_table(("table", "state", "trouble"), rows, ["yellow" if one.error else "" for one in found])


@tables.command()
def add(names: Tables, file: File = None, wait: Wait = False) -> None:
    """Add tables to a pipeline, which reads them as a whole and then follows them.

    In SQL: `select headwater.add_table('shop', 'sales.refunds')` in the state database.

    Examples:

        headwater tables add sales.refunds sales.returns
    """
    settings = load_pipeline(file)
    _require_publishable(settings, names)
    _ask(settings, names, lambda store, table: store.add(table), "added")
    if wait:
        follow_loading(settings, wait_for=_chosen(settings, names))


@tables.command()
def remove(names: Tables, file: File = None) -> None:
    """Take tables out of a pipeline; what the sinks have of them stays.

    In SQL: `select headwater.remove_table('shop', 'sales.refunds')` in the state database.
    """
    settings = load_pipeline(file)
    with _store(settings) as store:
        known = {table.key for table in store.tables()}
        for name in names:
            matched = [key for key in sorted(known) if _is_named(key, name)]
            if not matched:
                raise SettingsError(f"pipeline {settings.name} has no table {name}; `headwater tables` lists them")
            for key in matched:
                store.remove(key)
                typer.echo(f"{'.'.join(key)}: taken out")


def snapshot(names: Tables, file: File = None, wait: Wait = False) -> None:
    """Have a pipeline read tables as a whole again, while it runs or when it runs next.

    The sinks keep what they have until all rows have come, and then hold what the tables held at one moment, and follow from
    there: rows that the source does not have are gone.

    In SQL: `select headwater.snapshot_table('shop', 'sales.orders')` in the state database.

    Examples:

        headwater snapshot sales.orders
        headwater snapshot 'sales.*' --wait
    """
    settings = load_pipeline(file)
    _ask(settings, names, lambda store, table: store.request(table), "will be read as a whole", known_only=True)
    if wait:
        follow_loading(settings, wait_for=_chosen(settings, names))


def _ask(
    settings: "PipelineSettings",
    names: Sequence[str],
    ask: Callable[[TableStore, Name], None],
    said: str,
    *,
    known_only: bool = False,
) -> None:
    chosen = _chosen(settings, names)
    with _store(settings) as store:
        known = {table.key for table in store.tables() if table.state != "left"}
        for table in chosen if known_only else ():
            if table not in known:
                name = ".".join(table)
                raise SettingsError(
                    f"pipeline {settings.name} has no table {name}; add it with `headwater tables add {name}`"
                )
        for table in chosen:
            ask(store, table)
            typer.echo(f"{'.'.join(table)}: {said}")


def _require_publishable(settings: "PipelineSettings", names: Sequence[str]) -> None:
    """Raise SourceError for a table whose updates could not be captured, before anybody counts on it."""
    url = settings.source.url
    with translated(url), closing(connect_sync(url)) as connection:
        found = list_tables(connection)
    for table in select_tables(found, names):
        if table.is_capturable:
            require_identity(table, found)


def _is_named(table: Name, text: str) -> bool:
    pattern = parse_pattern(text)
    schema, name = table
    return bool(pattern.name.fullmatch(name) and (pattern.schema is None or pattern.schema.fullmatch(schema)))


def _chosen(settings: "PipelineSettings", names: Sequence[str]) -> list[Name]:
    """The tables of the source that names stand for; raises SourceError for one that is not there."""
    url = settings.source.url
    with translated(url), closing(connect_sync(url)) as connection:
        found: list[Table] = select_tables(list_tables(connection), names)
    for table in found:
        if not table.is_capturable:
            raise SettingsError(f"{table} has no changes in the WAL: it is a view, or unlogged; name a table")
    return [(table.schema, table.name) for table in found]


@contextmanager
def _store(settings: "PipelineSettings") -> Iterator[TableStore]:
    try:
        prepare_tables(settings.state_url)
    except psycopg.errors.InsufficientPrivilege as exc:
        raise SettingsError(f"the state database refuses: {exc.diag.message_primary}; grant it, or name another") from exc
    with closing(TableStore(settings.state_url, settings.name)) as store:
        yield store


def _state(table: PipelineTable) -> str:
    match table.state:
        case "wanted" if table.attempt is not None and table.pieces_total:
            return f"being read ({table.pieces_done} of {table.pieces_total} pieces)"
        case "wanted":
            return "to be read"
        case "streaming":
            return "followed"
        case _:
            return "taken out"


def _plain(table: PipelineTable) -> dict[str, object]:
    plain = dataclasses.asdict(table)
    plain["until_lsn"] = None if table.until_lsn is None else str(table.until_lsn)
    return plain
