"""What a pipeline leaves in databases and on disk, found and removed: all of it but what it has delivered."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

from headwater.errors import HeadwaterError, SlotActive
from headwater.outbox.checkpoint import find_checkpoints, forget_checkpoint, has_outbox
from headwater.postgres.connect import Connection, connect_sync, describe, translate
from headwater.postgres.replication.publication import find_publication
from headwater.postgres.replication.slot import PLUGIN, drop_slot, find_slot
from headwater.postgres.statements import Statement, execute_sync, fetch_sync, load
from headwater.spark.rules import Encoding
from headwater.spark.settings import NatsSinkSettings, OutboxSettings, PipelineSettings, TopicSettings
from headwater.spark.sink_settings import MessageTableSettings, PostgresSinkSettings, TopicSinkSettings
from headwater.spark.state import fetch_report
from headwater.spark.state.limits import MIB

SQL: Final = load("headwater.spark.state")

Row = TypeVar("Row")

# Sinks that keep how far they are in their own database.
_Positioned: TypeAlias = PostgresSinkSettings | MessageTableSettings | TopicSinkSettings

# What Spark makes in a checkpoint directory. Anything else there is not ours to remove.
_SPARKS: Final = ("commits", "metadata", "offsets", "sources", "state")
# A reader that was killed keeps its slot for a moment.
_SLOT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Remnant:
    """One thing that a pipeline leaves, in words, and what removes it."""

    said: str
    remove: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Remains:
    """All that a pipeline leaves: what can be removed, in the order to do so, and what has to stay, with the reason."""

    found: tuple[Remnant, ...]
    kept: tuple[str, ...]
    unreached: tuple[str, ...]


def find_remains(settings: PipelineSettings) -> Remains:
    """Look for all that is left of a pipeline. A database that does not answer is named, and passed over.

    The record of what the pipeline has made goes last, so that a removal which was cut short can be done again.
    """
    found: list[Remnant] = []
    kept: list[str] = []
    unreached: list[str] = []
    with_state = _reached(settings.state_url, "what it has written down", unreached)
    owns_publication = False
    if with_state:
        with closing(connect_sync(settings.state_url)) as state:
            saved = fetch_report(state, settings.name)
            owns_publication = saved is not None and saved.owns_publication
    if isinstance(settings.source, TopicSettings):
        kept.append(f"group {settings.source.group} of topic {settings.source.topic}: others may go on from its cursors")
    elif _reached(settings.source.url, f"slot {settings.source.slot} and its publication", unreached):
        found += _of_source(settings, kept, owns_publication=owns_publication)
    for sink in settings.sinks:
        if isinstance(sink, _Positioned) and _reached(sink.url, f"positions of sink {sink.name}", unreached):
            found += _of_sink(settings.name, sink)
        if isinstance(sink, NatsSinkSettings) and sink.encoding is Encoding.CREEK:
            kept.append(f"schema _creek at {describe(settings.source.url)}: messages in streams are read by what it has")
    found += _of_checkpoint(settings.checkpoint, kept)
    if with_state:
        found += _of_state(settings)
    return Remains(tuple(found), tuple(kept), tuple(unreached))


def _of_outbox(pipeline: str, url: str) -> Iterator[Remnant]:
    with closing(connect_sync(url)) as connection:
        if has_outbox(connection) and find_checkpoints(connection, pipeline):
            yield Remnant(f"the checkpoint of its outbox at {describe(url)}", lambda: _forget_outbox(pipeline, url))


def _forget_outbox(pipeline: str, url: str) -> None:
    with closing(connect_sync(url)) as connection:
        forget_checkpoint(connection, pipeline)


def _reached(url: str, what: str, unreached: list[str]) -> bool:
    try:
        connect_sync(url).close()
    except HeadwaterError as exc:
        unreached.append(f"{what}: {exc}")
        return False
    return True


def _of_source(settings: PipelineSettings, kept: list[str], *, owns_publication: bool) -> Iterator[Remnant]:
    source = settings.source
    with closing(connect_sync(source.url)) as connection:
        slot, publication = find_slot(connection, source.slot), find_publication(connection, source.publication)
        database = connection.info.dbname
    if slot is not None and (slot.plugin, slot.database) != (PLUGIN, database):
        kept.append(f"slot {slot.name}: it is none of this database for {PLUGIN}, so not one that the pipeline has read")
    elif slot is not None:
        held = f"{(slot.retained_bytes or 0) / MIB:,.1f} MiB of WAL"
        yield Remnant(
            f"slot {slot.name} at {describe(source.url)}, which keeps {held}", lambda: _drop_slot(source.url, source.slot)
        )
    if isinstance(source, OutboxSettings):
        yield from _of_outbox(settings.name, source.url)
    if publication is None:
        return
    if not owns_publication:
        kept.append(f"publication {publication.name}: the pipeline has found it and not made it")
    elif not publication.is_owner:
        kept.append(f"publication {publication.name}: it belongs to role {publication.owner} by now")
    else:
        drop = SQL["drop_publication"].compose(name=sql.Identifier(publication.name))
        yield Remnant(f"publication {publication.name}, which the pipeline has made", lambda: _execute(source.url, drop))


def _of_sink(pipeline: str, sink: _Positioned) -> Iterator[Remnant]:
    names = {"pipeline": pipeline, "sink": sink.name}
    with closing(connect_sync(sink.url)) as connection:
        positions, epochs = (
            _count(connection, SQL[name].bind(int, **names)) for name in ("count_positions", "count_epochs")
        )
        asides = _list(connection, SQL["list_asides"].bind(str, **names))
    if positions or epochs or asides:
        rows = ("forget_positions", "forget_epoch", "forget_loads", "forget_pieces", "forget_layouts")
        forget = [SQL[name].bind(object, **names) for name in rows]
        drop = [SQL["drop_aside"].compose(name=sql.Identifier(aside)) for aside in asides]
        yield Remnant(
            f"{positions} positions of sink {sink.name} at {describe(sink.url)}; its tables stay as they are",
            lambda: _execute(sink.url, *drop, *forget),
        )


def _of_checkpoint(checkpoint: str, kept: list[str]) -> Iterator[Remnant]:
    if "://" in checkpoint and not checkpoint.startswith("file:"):
        kept.append(f"checkpoint {checkpoint}: it is not on this machine; remove it there")
        return
    place = Path(unquote(urlsplit(checkpoint).path) if checkpoint.startswith("file:") else checkpoint)
    if any((place / name).exists() for name in _SPARKS):
        yield Remnant(f"checkpoint directory {place}", lambda: _remove_checkpoint(place))


def _of_state(settings: PipelineSettings) -> Iterator[Remnant]:
    name = {"pipeline": settings.name}
    with closing(connect_sync(settings.state_url)) as connection:
        letters = _count(connection, SQL["count_letters"].bind(int, **name))
        tables = _count(connection, SQL["count_tables"].bind(int, **name))
        has_row = fetch_report(connection, settings.name) is not None
    if letters or tables or has_row:
        place = describe(settings.state_url)
        what = f"what it has written down at {place}: its status, {tables} tables, {letters} dead letters"
        rows = ("forget_letters", "forget_tables", "forget_slot", "forget_pipeline")
        forget = [SQL[row].bind(object, **name) for row in rows]
        yield Remnant(what, lambda: _execute(settings.state_url, *forget))


def _count(connection: Connection, statement: Statement[int]) -> int:
    return next(iter(_list(connection, statement)), 0)


def _list(connection: Connection, statement: Statement[Row]) -> list[Row]:
    """The rows; none if their table is missing."""
    try:
        return fetch_sync(connection, statement)
    except psycopg.errors.UndefinedTable:
        return []


def _execute(url: str, *statements: Statement[Any]) -> None:
    """Run statements in one transaction; tables that are missing hold nothing."""
    try:
        with closing(connect_sync(url)) as connection, connection.transaction():
            for statement in statements:
                try:
                    with connection.transaction():
                        execute_sync(connection, statement)
                except psycopg.errors.UndefinedTable:
                    continue
    except psycopg.Error as exc:
        reason = exc.diag.message_primary or type(exc).__name__
        if exc.sqlstate is None:
            raise translate(exc, url) from exc
        raise HeadwaterError(f"PostgreSQL at {describe(url)} refused: {reason}; grant this role the right") from exc


def _drop_slot(url: str, name: str) -> None:
    deadline = time.monotonic() + _SLOT_SECONDS
    with closing(connect_sync(url)) as connection:
        while True:
            try:
                return drop_slot(connection, name)
            except SlotActive:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def _remove_checkpoint(place: Path) -> None:
    for name in _SPARKS:
        part = place / name
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)
    for crc in place.glob(".*.crc"):
        crc.unlink()
    # Whatever else somebody has put there stays, and the directory with it.
    if not any(place.iterdir()):
        place.rmdir()
