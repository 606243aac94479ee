"""Dead letters in the state database, on a connection of the caller's.

A sink supersedes letters before it writes the change that makes them pointless. That change is certain to be delivered, so
nothing is lost if the sink fails in between; and a replay, which holds its letter while it writes, is over by then.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from headwater.model import Position
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.statements import fetch_sync
from headwater.postgres.types import Field, Kind, PgType
from headwater.spark.letters import statements
from headwater.spark.letters.letter import Letter, LetterSummary, OpenLetter, State, StoredLetter
from headwater.spark.letters.statements import Record


def prepare_letters(url: str) -> None:
    """Make the tables of pipelines in the state database, if they are missing."""
    with translated(url), closing(connect_sync(url)) as connection:
        migrate(connection, Component.of("headwater.spark"))


def save_letters(connection: Connection, letters: Sequence[Letter]) -> int:
    """Keep letters, and return how many of them are new: those of an event that a sink has one of already are not."""
    return len(fetch_sync(connection, statements.save_letters(letters))) if letters else 0


def post_letters(url: str, letters: Sequence[Letter]) -> int:
    """As `save_letters`, on a connection of its own, which is only made if there is something to keep."""
    if not letters:
        return 0
    with translated(url), closing(connect_sync(url)) as connection:
        return save_letters(connection, letters)


def list_open(connection: Connection, pipeline: str, sink: str) -> list[OpenLetter]:
    """The letters of a sink that wait, in the order of the stream."""
    return fetch_sync(connection, statements.list_open(pipeline, sink))


def supersede(connection: Connection, ids: Iterable[int]) -> int:
    """Say of letters that a later change of their key comes, before it is written; waits for their replay to end."""
    wanted = list(ids)
    return len(fetch_sync(connection, statements.supersede(wanted))) if wanted else 0


def list_earlier(connection: Connection, id: int) -> list[int]:
    """The open letters of the same row that are older than a letter, in the order of the stream."""
    return fetch_sync(connection, statements.list_earlier(id))


def list_letters(
    connection: Connection,
    *,
    pipeline: str | None = None,
    sink: str | None = None,
    table: str | None = None,
    state: State | None = None,
) -> list[LetterSummary]:
    """Letters in the order of the stream. A table is named with or without its schema."""
    return fetch_sync(connection, statements.list_letters(pipeline, sink, table, state))


def find_letter(connection: Connection, id: int) -> StoredLetter | None:
    found = fetch_sync(connection, statements.find_letter(id))
    return _stored(found[0]) if found else None


def lock_letter(connection: Connection, id: int) -> StoredLetter | None:
    """The letter, held until the transaction of the caller's ends, so that its state is still true by then."""
    fetch_sync(connection, statements.lock_letter(id))
    return find_letter(connection, id)


def mark_replayed(connection: Connection, id: int) -> None:
    fetch_sync(connection, statements.mark_replayed(id))


def drop_letters(connection: Connection, ids: Iterable[int]) -> list[int]:
    """Forget letters; returns those that were there."""
    return sorted(fetch_sync(connection, statements.drop_letters(list(ids))))


def _stored(record: Record) -> StoredLetter:
    letter = Letter(
        pipeline=record.pipeline,
        sink=record.sink,
        event_id=record.event_id,
        schema=record.schema,
        table=record.table,
        op=record.op,
        position=Position(record.commit_lsn, record.ordinal),
        xid=record.xid,
        committed_at=record.committed_at,
        key=record.key,
        reason=record.reason,
        relation=record.relation,
        message=record.message,
        envelope=record.envelope,
        new_key=record.new_key,
        own_types=tuple(map(_type, record.own_types)),
    )
    return StoredLetter(record.id, State(record.state), record.created_at, letter)


def _type(facts: Mapping[str, Any]) -> PgType:
    fields = tuple(Field(**field) for field in facts["fields"])
    return PgType(**{**facts, "kind": Kind(facts["kind"]), "fields": fields})
