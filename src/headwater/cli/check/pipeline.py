"""Everything that would fail in a run of a pipeline, looked for part by part: one part that fails hides no other.

Imports Spark's package, so it is imported where that is known to be there.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from headwater.cli.check.columns import check_protected
from headwater.cli.check.finding import Finding, error, ok, refused, refused_text, warning
from headwater.cli.check.replication import check_creation, check_slot, kept_by
from headwater.cli.check.source import Looked, check_chosen, check_way, look_at
from headwater.cli.check.spark import check_spark
from headwater.cli.check.tables import check_left_out
from headwater.cli.config import environment
from headwater.cli.pipeline import load_pipeline
from headwater.cli.session import session
from headwater.embedded import resolve_java, state_directory
from headwater.errors import HeadwaterError, SlotMissing
from headwater.outbox.checkpoint import has_outbox
from headwater.outbox.columns import OUTBOX_TABLE
from headwater.outbox.mapping import Recovery, check_mapping
from headwater.outbox.served import find_served
from headwater.postgres.connect import describe
from headwater.postgres.migrate import Component, pending_migrations
from headwater.postgres.replication.publication import AddTables, Create, Publication, plan
from headwater.spark.feed import build_feed
from headwater.spark.lease import find_holder
from headwater.spark.session import build_session
from headwater.spark.settings import (
    BrokerSinkSettings,
    OutboxSettings,
    PipelineSettings,
    SinkSettings,
    SlotSettings,
    TopicSettings,
    TransformSettings,
)
from headwater.spark.sinks.build import build_sink
from headwater.spark.state import Rights, SavedReport, fetch_report, fetch_rights
from headwater.spark.transform import check_transform
from headwater.topics import find_sync, require_topics


def check_pipeline(file: Path) -> Iterator[Finding]:
    """The findings about a pipeline; a file that cannot be read is raised as SettingsError, with all that is wrong."""
    pipeline = load_pipeline(file)
    yield ok("file", f"pipeline {pipeline.name}, from {describe(pipeline.source.url)} to {_names(pipeline.sinks)}")
    found = list(check_spark())
    yield from found
    saved, state = _look_at_state(pipeline)
    yield from _check_source(pipeline, saved)
    yield state
    for sink in pipeline.sinks:
        yield from _check_sink(sink, pipeline)
    if pipeline.transform is not None and not any(finding.level == "error" for finding in found):
        yield from _check_code(pipeline, pipeline.transform)


def _check_source(pipeline: PipelineSettings, saved: SavedReport | None) -> Iterator[Finding]:
    source = pipeline.source
    if isinstance(source, TopicSettings):
        yield _check_topic(source)
        return
    try:
        with session(source.url) as connection:
            looked = look_at(connection, source.tables, source.slot, source.publication)
            yield from check_way(connection, source.url, looked)
    except HeadwaterError as exc:
        yield refused("source", exc)
        return
    has_run = saved is not None and saved.slot == source.slot and saved.report.position is not None
    if looked.slot is None and has_run and isinstance(source, OutboxSettings):
        yield warning(f"slot {source.slot}", "is lost", "the next run reads what it held from the table, if it can")
    elif looked.slot is None and has_run:
        yield refused(f"slot {source.slot}", SlotMissing(source.slot))
    elif looked.slot is not None and looked.slot.active and _is_running(pipeline):
        yield ok(f"slot {source.slot}", f"is read by the pipeline, which runs; {kept_by(looked.slot)}")
    else:
        yield check_slot(looked.slot, source.slot, looked.database.server.database)
    yield from looked.missing
    if isinstance(source, OutboxSettings):
        yield from _check_outbox(source)
        return
    yield from check_provision(source, looked)
    yield from check_chosen(looked)
    yield from check_left_out(looked.left_out)
    if pipeline.transform is not None:
        yield from check_protected(pipeline.transform.mask, pipeline.transform.hash, looked.chosen, looked.database)


def _check_topic(source: TopicSettings) -> Finding:
    subject = f"topic {source.topic}"
    try:
        with session(source.url) as connection:
            require_topics(connection)
            topic = find_sync(connection, source.topic)
    except HeadwaterError as exc:
        return refused(subject, exc)
    return ok(subject, f"has {topic.partitions} partitions, and is read for group {source.group}")


def _check_outbox(source: OutboxSettings) -> Iterator[Finding]:
    """Whether the table can be an outbox, and what can be promised of it; one of ours is made by the first run."""
    subject = f"outbox {source.table}"
    if source.emitted:
        yield ok(subject, "is not read: messages are those in the WAL, and are lost with the slot")
        return
    try:
        with session(source.url) as connection:
            if source.table == OUTBOX_TABLE and not has_outbox(connection):
                yield ok(subject, "is made by the first run")
                return
            table = check_mapping(connection, source.table, source.columns)
            served = find_served(connection) if source.table == OUTBOX_TABLE else None
    except HeadwaterError as exc:
        yield refused(subject, exc)
        return
    if served is not None:
        yield error(
            subject,
            f"relays inside of processes serve it since {served.since:%Y-%m-%d %H:%M %Z}; a run would send all of it twice, "
            "and is refused",
            "stop them and run `headwater outbox release`, or run no pipeline",
        )
    elif table.recovery is Recovery.EXACT:
        yield ok(subject, table.promise)
    else:
        yield warning(subject, table.promise, "add the columns, or live with it")


def _is_running(pipeline: PipelineSettings) -> bool:
    return find_holder(pipeline.state_url, pipeline.name) is not None


def check_provision(source: SlotSettings, looked: Looked) -> Iterator[Finding]:
    """Whether a run will have its publication: tables that it lacks are added, and none is made for an older slot."""
    subject, found, database = f"publication {source.publication}", looked.publication, looked.database
    if not looked.chosen:
        return
    wanted = Publication(name=source.publication, tables=source.tables)
    steps = [step for step in plan(wanted, looked.chosen, found, database.tables) if isinstance(step, Create | AddTables)]
    if not steps:
        yield ok(subject, "covers the tables")
    elif found is not None:
        # A run adds what is missing, and then reads it as a whole.
        added = [table for step in steps if isinstance(step, AddTables) for table in step.tables]
        yield ok(subject, f"lacks {', '.join(map(str, added))}, which will be added")
        yield from check_creation(subject, added, database.server, database.rights)
    elif looked.slot is not None:
        yield error(
            subject,
            f"does not exist, and slot {source.slot} is there already, so changes that wait in it would be missing",
            f"create it yourself if that is well, or drop the slot with `headwater slots drop {source.slot}`",
        )
    else:
        yield ok(subject, "does not exist yet")
        yield from check_creation(subject, looked.chosen, database.server, database.rights)
    narrowed = [str(table) for table in looked.chosen if found is not None and table.oid in found.narrowed]
    if narrowed:
        listed = ", ".join(narrowed)
        yield warning(subject, f"has a row filter or a column list for {listed}", "nothing, if the rest is not wanted")


def _look_at_state(pipeline: PipelineSettings) -> tuple[SavedReport | None, Finding]:
    """What the pipeline has left behind when it last ran, and whether its next run can write there."""
    subject = "state database"
    try:
        with session(pipeline.state_url) as connection:
            rights = fetch_rights(connection)
            pending = pending_migrations(connection, Component.of("headwater.spark")) if rights.can_use_schema else None
            saved = fetch_report(connection, pipeline.name) if pending == () else None
    except HeadwaterError as exc:
        return None, refused(subject, exc)
    return saved, judge_rights(subject, rights, is_current=pending == ())


def judge_rights(subject: str, rights: Rights, *, is_current: bool) -> Finding:
    """Whether Headwater's tables are there or can be made."""
    user, database = rights.user, rights.database
    if rights.in_recovery:
        return error(subject, f"{database} is on a standby, where nothing can be written", "set state_url to a primary")
    if is_current:
        return ok(subject, f"schema headwater of {database} is as this release wants it")
    if not rights.has_schema and rights.can_create_schema:
        return ok(subject, f"schema headwater will be made in {database}")
    if rights.has_schema and rights.can_create_tables:
        return ok(subject, f"tables will be made in schema headwater of {database}")
    return error(
        subject,
        f"role {user} may not create {'tables in ' if rights.has_schema else ''}schema headwater in database {database}",
        f"have its owner run `{_grant(rights)}`, or set state_url to another database",
    )


def _grant(rights: Rights) -> str:
    if rights.has_schema:
        return f'grant usage, create on schema headwater to "{rights.user}"'
    return f'create schema headwater authorization "{rights.user}"'


def _check_sink(settings: SinkSettings, pipeline: PipelineSettings) -> Iterator[Finding]:
    subject = f"sink {settings.name}"
    try:
        sink = build_sink(
            settings,
            pipeline=pipeline.name,
            source_url=pipeline.source.url,
            state_url=pipeline.state_url,
            tables=pipeline.source.tables,
            publication=pipeline.source.publication,
        )
        problems = sink.check() if hasattr(sink, "check") else []
    except HeadwaterError as exc:
        yield refused(subject, exc)
        return
    yield from (refused_text(subject, problem) for problem in problems)
    if not problems and isinstance(settings, BrokerSinkSettings):
        yield ok(subject, "nothing stands in the way, as far as can be told without a message")
    elif not problems:
        yield ok(subject, "can be written to" if hasattr(sink, "check") else "needs nothing")


def _check_code(pipeline: PipelineSettings, transform: TransformSettings) -> Iterator[Finding]:
    """Try the transform on a Spark of this machine, whatever the master of the pipeline is."""
    if transform.filter is None and transform.sql is None and transform.function is None:
        return
    java = resolve_java(environment(), state_directory())
    with ExitStack() as stack:
        try:
            name = f"headwater check {pipeline.name}"
            spark = build_session(name, master="local[1]", settings=pipeline.spark, java_home=java)
            stack.callback(spark.stop)
            check_transform(spark, transform, build_feed(pipeline).shape)
        except HeadwaterError as exc:
            yield refused("transform", exc)
        else:
            yield ok("transform", "gives the columns of `changes`")


def _names(sinks: tuple[SinkSettings, ...]) -> str:
    return ", ".join(sink.name for sink in sinks)
