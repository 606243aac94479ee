"""`headwater creek produce`: a Creek producer, from Creek's environment alone."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Final

import typer
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headwater.cli.config import environment
from headwater.cli.creek.environment import ProducerEnvironment, read_environment
from headwater.cli.pipeline import require_nats, require_spark
from headwater.cli.run import run_pipeline
from headwater.cli.signals import stop_on_sigterm
from headwater.embedded import state_directory
from headwater.errors import BrokerError, BrokerUnavailable, SettingsError, SourceError
from headwater.http import bind
from headwater.postgres.catalog import Table, list_tables, select_tables
from headwater.postgres.connect import Connection, complete, connect_sync, describe, translated
from headwater.postgres.replication.publication import (
    Found,
    find_publication,
    publish_tables,
    require_identity,
    require_publishable,
)

if TYPE_CHECKING:
    from headwater.spark.settings import PipelineSettings

_log = logging.getLogger(__name__)

SINK: Final = "creek"
# Tables of ours and of Creek's, which nobody means by "all tables".
_OWN_SCHEMAS: Final = ("headwater", "_creek", "_creek_consumer")


def produce(
    context: typer.Context,
    generation: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2,
            show_default="CREEK_GENERATION, or 1",
            help="Which of Creek's wires to speak: 1 is that of its README and its PostgreSQL client, 2 its last release's.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            show_default="one under the state directory",
            help="Where Spark remembers its batches; a lost one costs a repeated batch.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Publish what has committed by now, confirm it to the slot, and exit.")
    ] = False,
) -> None:
    """Publish the changes of a PostgreSQL database to NATS JetStream, in the place of a Creek producer.

    Everything is told by Creek's own variables: PG_URI, PG_PUBLICATION_NAME, PG_PUBLICATION_SLOT, PG_TABLES,
    PG_MESSAGE_TIMEOUT, NATS_URI, NATS_NAMESPACE, NATS_TIMEOUT, NATS_MAX_PENDING, NATS_REPLICAS, NATS_RETENTION_POLICY,
    NATS_RETENTION_MAX_AGE, NATS_RETENTION_MAX_BYTES, NATS_RETENTION_MAX_MSGS, LOG_LEVEL and PROMETHEUS_PORT; and by
    CREEK_GENERATION, NATS_CREDS_FILE, NATS_NKEY_FILE, NATS_TLS_CA, NATS_TLS_CERT and NATS_TLS_KEY, which are ours.

    The slot and the publication of a Creek producer are taken over as they are; tables of PG_TABLES that the publication
    lacks are added to it. A table without a key is refused, for its updates would fail once it is published.

    Examples:

        PG_URI=postgres://app@db/shop PG_PUBLICATION_NAME=creek PG_PUBLICATION_SLOT=creek \\
            PG_TABLES=public.orders NATS_URI=nats://nats:4222 headwater creek produce
        headwater creek produce --generation 2
    """
    require_spark()
    require_nats()
    given = read_environment(environment())
    _set_level(context, given.log_level)
    settings = settings_of(given, generation=generation, checkpoint=checkpoint)
    _require_port(given.prometheus_port)
    _require_login(settings)
    with stop_on_sigterm() as stopping:
        try:
            run_pipeline(settings, stopping, once=once)
        except KeyboardInterrupt:
            stopping.set()
            raise


def settings_of(
    given: ProducerEnvironment, *, generation: int | None = None, checkpoint: str | None = None
) -> "PipelineSettings":
    """The pipeline that the environment describes. Looks at the publication, and adds the tables that it lacks."""
    from headwater.brokers.nats.access import NatsAccess
    from headwater.brokers.nats.streams import StreamLimits
    from headwater.creek.names import Generation
    from headwater.spark.settings import ChangesSettings, NatsSinkSettings, PipelineSettings, SnapshotRule

    url = source_url(given)
    with _named("NATS_URI"):
        access = NatsAccess(
            url=given.nats_uri,
            creds_file=given.creds_file,
            nkey_file=given.nkey_file,
            tls_ca=given.tls_ca,
            tls_cert=given.tls_cert,
            tls_key=given.tls_key,
            timeout=given.nats_timeout,
            max_pending=given.max_pending,
        )
    with _named("NATS_NAMESPACE"):
        sink = NatsSinkSettings(
            name=SINK,
            access=access,
            namespace=given.namespace,
            generation=Generation(str(generation) if generation is not None else given.generation),
            limits=StreamLimits(
                replicas=given.replicas,
                max_age=given.max_age,
                max_bytes=given.max_bytes,
                max_msgs=given.max_msgs,
                retention=given.retention,
            ),
        )
    tables = _tables(url, given)
    with _named("PG_PUBLICATION_SLOT"):
        source = ChangesSettings(
            url=url,
            tables=tables,
            slot=given.slot,
            publication=given.publication,
            snapshot=SnapshotRule.NEVER,
        )
        if given.message_timeout is not None:
            source = replace(source, status_interval=given.message_timeout)
    return PipelineSettings(
        name=f"creek-{given.slot}",
        source=source,
        sinks=(sink,),
        checkpoint=checkpoint or _checkpoint(url, given.slot),
        state_url=url,
        # As Creek does: whoever scrapes it is on another machine.
        listen=f"0.0.0.0:{given.prometheus_port}",
    )


def source_url(given: ProducerEnvironment) -> str:
    """The source's URL. With PG_MESSAGE_TIMEOUT both sides of the stream give each other up after that time.

    The server then shows signs of life twice as often, also in the midst of a transaction that it leaves out; the reader
    takes the limit from the server.
    """
    with _named("PG_URI"):
        complete(given.pg_uri)
    if given.message_timeout is None:
        return given.pg_uri
    known = conninfo_to_dict(complete(given.pg_uri)).get("options") or environment().get("PGOPTIONS", "")
    milliseconds = max(1, round(given.message_timeout.total_seconds() * 1000))
    return make_conninfo(given.pg_uri, options=f"{known} -c wal_sender_timeout={milliseconds}".strip())


def _tables(url: str, given: ProducerEnvironment) -> tuple[str, ...]:
    """The tables of PG_TABLES, all of them published if the publication is there; without any, those that it names."""
    with translated(url), closing(connect_sync(url)) as connection:
        found, listed = find_publication(connection, given.publication), list_tables(connection)
        if not given.tables:
            return _published(found, listed, given.publication)
        try:
            chosen = select_tables(listed, given.tables)
            for table in chosen:
                require_publishable(table)
                require_identity(table, listed)
        except SourceError as exc:
            raise SettingsError(f"PG_TABLES: {exc}") from exc
        if found is not None:
            _publish(connection, found, chosen)
    return given.tables


def _published(found: Found | None, listed: Sequence[Table], publication: str) -> tuple[str, ...]:
    if found is None:
        raise SettingsError(
            f"PG_TABLES is empty, and there is no publication {publication!r} that names tables; set it to the tables to "
            "publish, such as public.orders,public.items"
        )
    theirs = [table for table in listed if table.schema not in _OWN_SCHEMAS]
    schemas = {table.schema for table in theirs} if found.all_tables else found.schemas
    patterns = tuple(f"{_quoted(schema)}.*" for schema in sorted(schemas))
    names = tuple(f"{_quoted(table.schema)}.{_quoted(table.name)}" for table in theirs if table.oid in found.tables)
    if not patterns and not names:
        raise SettingsError(f"PG_TABLES is empty, and publication {publication!r} has no tables; set it to those to publish")
    return patterns + names


def _publish(connection: Connection, found: Found, chosen: Sequence[Table]) -> None:
    """Add to the publication what it lacks; what else it has stays."""
    missing = [(table.schema, table.name) for table in chosen if not found.holds(table)]
    for table, reason in publish_tables(connection, found.name, missing).items():
        raise SourceError(f"PG_TABLES: table {'.'.join(table)} is not in publication {found.name!r}: {reason}")
    if missing:
        names = ", ".join(map(".".join, missing))
        _log.info("publication %s: %s added", found.name, names, extra={"publication": found.name})


def _checkpoint(url: str, slot: str) -> str:
    """A directory of this slot's own: servers may have slots of the same name."""
    place = sha256(describe(url).encode()).hexdigest()[:8]
    return str(state_directory() / "creek" / f"{slot}-{place}")


def _set_level(context: typer.Context, level: str | None) -> None:
    """Log as LOG_LEVEL says, unless our own option or variable was used."""
    source = context.find_root().get_parameter_source("log_level")
    if level is not None and (source is None or source.name not in ("COMMANDLINE", "ENVIRONMENT")):
        logging.getLogger().setLevel(level.upper())


def _require_port(port: int) -> None:
    """Find out before anything starts, and with the name of the variable, whether monitors can be answered."""
    try:
        bind(f"0.0.0.0:{port}").close()
    except SettingsError as exc:
        raise SettingsError(f"PROMETHEUS_PORT: port {port} is taken; set it to another one") from exc


def _require_login(settings: "PipelineSettings") -> None:
    """Find out before a slot is made whether NATS lets us in; one that is away is waited for later."""
    from headwater.brokers.nats.link import Link
    from headwater.spark.settings import NatsSinkSettings

    for sink in settings.sinks:
        if isinstance(sink, NatsSinkSettings):
            try:
                Link(sink.access).close()
            except BrokerUnavailable:
                continue
            except BrokerError as exc:
                raise SettingsError(f"NATS_URI: {exc}") from exc


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _named(variable: str) -> Iterator[None]:
    """What is wrong with the settings in the block is said of a variable."""
    try:
        yield
    except SettingsError as exc:
        raise SettingsError(f"{variable}: {exc}") from exc
