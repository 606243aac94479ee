"""`headwater creek apply`: a Creek consumer that keeps tables of a PostgreSQL, in the place of creek-pg-client."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import psycopg
import typer

from headwater.cli.config import Json, environment
from headwater.cli.output import print_json, print_table
from headwater.cli.pipeline import require_nats, require_spark
from headwater.cli.session import session
from headwater.cli.signals import stop_on_sigterm
from headwater.creek.consumer import statements
from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.consumer.statements import SCHEMA, Subscription
from headwater.embedded import resolve_java, state_directory
from headwater.errors import HeadwaterError, SettingsError
from headwater.postgres.connect import Connection, describe
from headwater.postgres.statements import Statement, execute_sync, fetch_sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.creek_apply.settings import ApplySettings, Mode
    from headwater.spark.sinks.sink import Written

_log = logging.getLogger(__name__)

apply = typer.Typer(no_args_is_help=True)

Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="DB.SCHEMA.TABLE:SCHEMA.TABLE...",
        help="Tables of sources, and where they go. A name with a dot or a colon in it is quoted as in SQL.",
    ),
]
OneTable = Annotated[
    str, typer.Argument(metavar="DB.SCHEMA.TABLE:SCHEMA.TABLE", help="A table of a source, and where it goes.")
]
ModeOption = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="upsert|clean",
        help="What becomes of rows that the target has and the snapshot does not: upsert keeps them, clean removes them.",
    ),
]


# What Creek's logger calls them, and what ours does.
_LEVELS: Final = {"trace": "DEBUG", "debug": "DEBUG", "info": "INFO", "warn": "WARNING", "warning": "WARNING"}

Tell: TypeAlias = Callable[[TableMapping], Statement[object]]


@apply.callback()
def options(
    context: typer.Context,
    nats_uri: Annotated[
        str, typer.Option(envvar="NATS_URI", metavar="URL", help="The NATS server, as nats://host:4222.")
    ] = "",
    nats_namespace: Annotated[
        str, typer.Option(envvar="NATS_NAMESPACE", help="What the names of the streams begin with.")
    ] = "CREEK",
    db_uri: Annotated[
        str, typer.Option(envvar="DB_URI", metavar="URL", help="The target, as postgres://user@host:5432/database.")
    ] = "",
    db_namespace: Annotated[
        str, typer.Option(envvar="DB_NAMESPACE", help="The schema of the consumer's own tables; there is only one.")
    ] = SCHEMA,
    generation: Annotated[int, typer.Option(envvar="CREEK_GENERATION", min=1, max=2, help="Which of Creek's wires.")] = 1,
    log_level: Annotated[
        str | None,
        typer.Option(envvar="LOG_LEVEL", help="How much to log: debug, info, warning or error.", show_default="info"),
    ] = None,
) -> None:
    """Keep tables of a PostgreSQL equal to those that Creek streams on NATS tell of, each change exactly once.

    The target's schema _creek_consumer says which tables are followed, and how far each is; its functions add_table,
    remove_table, create_schema, snapshot and apply_snapshot do in SQL what the commands do, while `serve` runs or when it
    runs next.

    More of NATS: NATS_CREDS_FILE, NATS_NKEY_FILE, NATS_TLS_CA, NATS_TLS_CERT, NATS_TLS_KEY, NATS_TIMEOUT.

    Examples:

        export NATS_URI=nats://nats:4222 DB_URI=postgres://app@db/copy
        headwater creek apply create-schemas shop.public.orders:public.orders
        headwater creek apply add-tables shop.public.orders:public.orders
        headwater creek apply snapshot --mode clean shop.public.orders:public.orders
        headwater creek apply serve
    """
    if db_namespace != SCHEMA:
        raise SettingsError(f"DB_NAMESPACE can only be {SCHEMA}, which it is if it is not set")
    _set_level(context, log_level)
    context.obj = (nats_uri, nats_namespace, db_uri, generation)


@apply.command("create-schemas")
def create_schemas(context: typer.Context, tables: Tables) -> None:
    """Make the target tables that are missing, from the schemas that were published last."""
    settings = _settings(context)
    from headwater.spark.creek_apply.sink import prepare_target
    from headwater.spark.creek_apply.tables import create_from_schema
    from headwater.spark.sinks.postgres.session import Session

    mappings = list(map(TableMapping.parse, tables))
    prepare_target(settings.url)
    with closing(Session(settings.url)) as target:
        for mapping in mappings:
            is_made = create_from_schema(settings, target, mapping)
            typer.echo(f"{mapping.target}: {'made' if is_made else 'is there already'}")


@apply.command()
def snapshot(context: typer.Context, tables: Tables, mode: ModeOption = "upsert") -> None:
    """Have snapshots of tables taken, and load them; a running `serve` goes on from there with their changes.

    The target keeps what it has until all rows have come. A table that is not followed yet goes on from the snapshot when it
    is added.
    """
    settings, chosen = _settings(context), _mode(mode)
    mappings = list(map(TableMapping.parse, tables))
    from headwater.spark.creek_apply.snapshot import SnapshotLoader

    with _spark(settings) as spark:
        loader, failed = SnapshotLoader(spark, settings), 0
        for mapping in mappings:
            try:
                _say_loaded(mapping, loader.take(mapping, chosen))
            except HeadwaterError as exc:
                failed += 1
                typer.echo(f"error: {mapping.target}: {exc}", err=True)
    if failed:
        raise typer.Exit(1)


@apply.command("apply-snapshot")
def apply_snapshot(
    context: typer.Context,
    table: OneTable,
    name: Annotated[str, typer.Option("--name", metavar="TOPIC", help="The snapshot, as list-snapshots names it.")],
    mode: ModeOption = "upsert",
) -> None:
    """Load a snapshot that was taken before, if the stream still has the changes since."""
    settings, chosen, mapping = _settings(context), _mode(mode), TableMapping.parse(table)
    from headwater.spark.creek_apply.snapshot import SnapshotLoader

    with _spark(settings) as spark:
        _say_loaded(mapping, SnapshotLoader(spark, settings).apply(mapping, chosen, name))


@apply.command("list-snapshots")
def list_snapshots(
    context: typer.Context,
    tables: Annotated[list[str], typer.Argument(metavar="DB.SCHEMA.TABLE...", help="Tables of sources.")],
    json: Json = False,
) -> None:
    """Show the snapshots of tables that there are."""
    settings = _settings(context, needs_target=False)
    from headwater.spark.creek_apply.listing import list_snapshots as listed

    topics = [TableMapping.parse(table).topic for table in tables]
    found = [one for topic in topics for one in listed(settings, topic)]
    if json:
        print_json([{"name": one.name, "at": one.at, "messages": one.messages} for one in found])
    else:
        rows = [(one.name, f"{one.at:%Y-%m-%d %H:%M:%S}" if one.at else "", str(one.messages)) for one in found]
        print_table(("snapshot", "at", "messages"), rows)


@apply.command("list-tables")
def list_tables(context: typer.Context, json: Json = False) -> None:
    """Show the tables that are followed, how far each is, and what keeps one from going on."""
    settings = _settings(context, needs_nats=False)
    with _target(settings) as connection:
        found = fetch_sync(connection, statements.list_subscriptions())
    if json:
        print_json([_plain(one) for one in found])
    else:
        rows = [(one.topic, one.target, str(one.lsn or ""), _state(one), one.error or "") for one in found]
        print_table(("topic", "target", "lsn", "state", "trouble"), rows, ["yellow" if one.error else "" for one in found])


@apply.command("add-tables")
def add_tables(context: typer.Context, tables: Tables) -> None:
    """Follow tables: their changes are applied from where each was, from its snapshot, or from the stream's beginning."""
    _tell(context, tables, statements.add_table, "followed")


@apply.command("remove-tables")
def remove_tables(context: typer.Context, tables: Tables) -> None:
    """Follow tables no more; what the target has of them stays."""
    _tell(context, tables, statements.remove_table, "not followed any more")


@apply.command()
def serve(
    context: typer.Context,
    prometheus_port: Annotated[
        int, typer.Option(envvar="PROMETHEUS_PORT", min=0, max=65535, help="Where to answer monitors: /metrics and /health.")
    ] = 8080,
    once: Annotated[bool, typer.Option("--once", help="Apply what the streams hold by now, and exit.")] = False,
) -> None:
    """Apply the changes of the tables that are followed until SIGTERM: it finishes what it is at, and exits with 0.

    A second one for the same target stands by, and takes over when the first one ends, also when that was killed.
    """
    settings = _settings(context)
    from headwater.spark.creek_apply.counts import Counts
    from headwater.spark.creek_apply.metrics import MetricsServer
    from headwater.spark.creek_apply.serve import Consumer
    from headwater.spark.monitor.creek import LogCounter

    counts = Counts()
    with stop_on_sigterm() as stopping, ExitStack() as stack:
        logged = stack.enter_context(LogCounter())
        if not once:
            stack.enter_context(MetricsServer(prometheus_port, counts, logged))
        spark = stack.enter_context(_spark(settings))
        _log.info("creek: from NATS at %s to PostgreSQL at %s", settings.access.describe(), describe(settings.url))
        try:
            Consumer(spark, settings, stopping, counts).run(once=once)
        except KeyboardInterrupt:
            stopping.set()
            raise
    if once:
        _require_all_applied(settings)


def _require_all_applied(settings: "ApplySettings") -> None:
    """Raise HeadwaterError if a table that is followed could not go on."""
    with _target(settings) as connection:
        left = [one for one in fetch_sync(connection, statements.list_subscriptions()) if one.is_active and one.error]
    if left:
        reasons = "; ".join(f"{one.target}: {one.error}" for one in left)
        raise HeadwaterError(f"{len(left)} of the tables are left where they are: {reasons}")


def _tell(context: typer.Context, tables: list[str], tell: Tell, said: str) -> None:
    settings = _settings(context, needs_nats=False)
    mappings = list(map(TableMapping.parse, tables))
    with _target(settings) as connection:
        for mapping in mappings:
            try:
                execute_sync(connection, tell(mapping))
            except psycopg.errors.RaiseException as exc:
                raise HeadwaterError(f"{exc.diag.message_primary}; `list-tables` shows which are") from exc
            typer.echo(f"{mapping.topic}: {said}")


@contextmanager
def _target(settings: "ApplySettings") -> Iterator[Connection]:
    from headwater.spark.creek_apply.sink import prepare_consumer

    with session(settings.url) as connection:
        prepare_consumer(connection)
        yield connection


@contextmanager
def _spark(settings: "ApplySettings") -> Iterator["SparkSession"]:
    from headwater.spark.creek_apply.sink import prepare_target
    from headwater.spark.session import build_session, end_session

    prepare_target(settings.url)
    java = resolve_java(environment(), state_directory())
    spark = build_session("creek apply", master=settings.master, settings=settings.spark, java_home=java)
    try:
        yield spark
    finally:
        end_session(spark)


def _settings(context: typer.Context, *, needs_nats: bool = True, needs_target: bool = True) -> "ApplySettings":
    """What was said in front of the command; raises SettingsError for what it needs and was not."""
    require_spark()
    require_nats()
    from headwater.brokers.nats.access import NatsAccess
    from headwater.cli.creek.environment import parse_go_duration
    from headwater.creek.names import Generation
    from headwater.spark.creek_apply.settings import ApplySettings

    nats_uri, namespace, db_uri, generation = context.obj
    if needs_nats and not nats_uri:
        raise SettingsError("NATS_URI is not set; set it, or --nats-uri, to the NATS server, such as nats://host:4222")
    if needs_target and not db_uri:
        raise SettingsError(
            "DB_URI is not set; set it, or --db-uri, to the target, such as postgres://user@host:5432/database"
        )
    known = environment()
    try:
        timeout = parse_go_duration(known["NATS_TIMEOUT"]) if known.get("NATS_TIMEOUT") else timedelta(seconds=30)
    except ValueError as exc:
        raise SettingsError("NATS_TIMEOUT must be a duration such as 30s or 500ms, more than 0") from exc
    access = NatsAccess(
        url=nats_uri or "nats://localhost:4222",
        creds_file=known.get("NATS_CREDS_FILE") or None,
        nkey_file=known.get("NATS_NKEY_FILE") or None,
        tls_ca=known.get("NATS_TLS_CA") or None,
        tls_cert=known.get("NATS_TLS_CERT") or None,
        tls_key=known.get("NATS_TLS_KEY") or None,
        timeout=timeout,
    )
    return ApplySettings(access=access, url=db_uri, namespace=namespace, generation=Generation(str(generation)))


def _mode(text: str) -> "Mode":
    from headwater.spark.creek_apply.settings import Mode

    try:
        return Mode(text)
    except ValueError as exc:
        raise SettingsError(f"--mode is {text!r}, and has to be one of {', '.join(Mode)}") from exc


def _say_loaded(mapping: TableMapping, written: "Written") -> None:
    refused = f", {written.letters} of them refused and kept as dead letters" if written.letters else ""
    typer.echo(f"{mapping.target}: {written.changes + written.letters} rows loaded{refused}")


def _state(one: Subscription) -> str:
    if not one.is_active:
        return "not followed"
    if one.error is not None:
        return "left where it is"
    if one.sequence is None:
        return "to be begun"
    return "catching up" if one.is_behind else "followed"


def _plain(one: Subscription) -> dict[str, object]:
    return {
        "topic": one.topic,
        "target": one.target,
        "lsn": None if one.lsn is None else str(one.lsn),
        "timestamp": one.at,
        "active": one.is_active,
        "state": _state(one),
        "stream": one.stream,
        "sequence": one.sequence,
        "error": one.error,
    }


def _set_level(context: typer.Context, level: str | None) -> None:
    """Log as LOG_LEVEL says, unless our own option or variable was used."""
    source = context.find_root().get_parameter_source("log_level")
    if level is not None and (source is None or source.name not in ("COMMANDLINE", "ENVIRONMENT")):
        logging.getLogger().setLevel(_LEVELS.get(level.lower(), "ERROR"))
