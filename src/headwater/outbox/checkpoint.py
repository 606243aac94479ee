"""How far a pipeline has delivered an outbox, kept beside the outbox: what is known when the slot is gone.

A checkpoint is a snapshot: every message that it sees is delivered. Beside it stand the transactions that were delivered
since. No clock takes part, but for tables whose rows do not say which transaction wrote them.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import psycopg

from headwater.errors import HeadwaterError, SettingsError
from headwater.model import Lineage, Lsn, Snapshot
from headwater.outbox.columns import OUTBOX_TABLE
from headwater.outbox.rights import no_outbox
from headwater.outbox.served import require_unserved
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.migrate import Component, migrate, pending_migrations
from headwater.postgres.statements import Statement, execute_sync, fetch_sync, load

SQL: Final = load("headwater.outbox", "sql/checkpoint.sql")


@dataclass(frozen=True, slots=True)
class _Taken:
    epoch: int
    table_name: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it is saved; the columns are described in the database."""

    pipeline: str
    table_name: str
    epoch: int
    generation: str
    phase: str
    system_identifier: str
    timeline: int
    snapshot: str | None
    lsn: Lsn | None
    newest_at: datetime | None
    recovery_snapshot: str | None
    recovery_lsn: Lsn | None
    recovers_all: bool
    recovered_at: str | None
    recovered_id: str | None
    recovered: int
    recovered_before: Sequence[Mapping[str, str]]
    saved_at: datetime
    delivered: int

    @property
    def is_recovering(self) -> bool:
        return self.phase == "recovering"

    def holds_for(self, lineage: Lineage) -> bool:
        """Whether what it says is part of a server's history.

        A standby that lagged when it was promoted gives the ids of transactions that it never had to others.
        """
        if self.system_identifier != lineage.system_identifier:
            return False
        return self.lsn is None or lineage.timeline_of(Lsn(max(0, self.lsn - 1))) == self.timeline


def prepare_outbox(url: str) -> None:
    """Make Headwater's outbox, and the tables that go with it, in the database of an application."""
    with translated(url), closing(connect_sync(url)) as connection:
        migrate(connection, Component.of("headwater.outbox"))


def has_outbox(connection: Connection) -> bool:
    """Whether this database has the tables of the outbox, as this release wants them."""
    return not pending_migrations(connection, Component.of("headwater.outbox"))


def require_outbox(connection: Connection) -> None:
    if not has_outbox(connection):
        raise no_outbox()


def find_checkpoints(connection: Connection, pipeline: str | None = None) -> list[Checkpoint]:
    """The checkpoints of all pipelines, or of one."""
    return fetch_sync(connection, SQL["find_checkpoints"].bind(Checkpoint, pipeline=pipeline))


def reset_checkpoint(connection: Connection, pipeline: str) -> None:
    """Have a pipeline deliver everything again; a run that is under way ends."""
    with connection.transaction():
        execute_sync(connection, SQL["reset_checkpoint"].bind(str, pipeline=pipeline))
        execute_sync(connection, SQL["forget_delivered"].bind(str, pipeline=pipeline))


def forget_checkpoint(connection: Connection, pipeline: str) -> None:
    """Forget that a pipeline has delivered anything, for good: what it has not may be dropped."""
    execute_sync(connection, SQL["forget_checkpoint"].bind(str, pipeline=pipeline))


def take_checkpoint(url: str, pipeline: str, table: str) -> int:
    """Make the checkpoint this run's alone to move, or begin one; returns the number to move it with.

    Raises SettingsError if it is of another table, of which it says nothing; and OutboxError for Headwater's own table while
    relays inside of processes serve it.
    """
    with translated(url), closing(connect_sync(url)) as connection, connection.transaction():
        if table == OUTBOX_TABLE:
            require_unserved(connection)
        (taken,) = fetch_sync(connection, SQL["take_checkpoint"].bind(_Taken, pipeline=pipeline, table=table))
    if taken.table_name != table:
        raise SettingsError(
            f"pipeline {pipeline!r} has delivered from {taken.table_name}, and {table} is another outbox; give the pipeline "
            "another name, or remove it with `headwater destroy` first"
        )
    return taken.epoch


class CheckpointStore:
    """The checkpoint of one pipeline, on a connection that is kept, and opened again when it was lost."""

    def __init__(self, url: str, pipeline: str, epoch: int) -> None:
        self._url, self._pipeline, self._epoch = url, pipeline, epoch
        self._connection: Connection | None = None

    def find(self) -> Checkpoint:
        """The checkpoint; raises if another run has taken it over, or somebody has removed it."""
        with translated(self._url):
            found = next(iter(find_checkpoints(self._opened(), self._pipeline)), None)
        if found is None or found.epoch != self._epoch:
            raise self._fenced()
        return found

    def delivered(self) -> tuple[int, ...]:
        """The transactions that were delivered since the snapshot of the checkpoint was taken."""
        with translated(self._url):
            return tuple(fetch_sync(self._opened(), SQL["list_delivered"].bind(int, pipeline=self._pipeline)))

    def begin_recovery(  # noqa: PLR0913 - what is known of the slot, of the snapshot, and of the table
        self,
        generation: str,
        lineage: Lineage,
        snapshot: Snapshot,
        lsn: Lsn,
        *,
        keeps: bool,
        recovers_all: bool = False,
    ) -> None:
        """Have the table read up to what a snapshot sees; without `keeps`, also what was delivered before.

        With `recovers_all`, whatever the rows say of their transactions.
        """
        begun = SQL["begin_recovery"].bind(
            str,
            pipeline=self._pipeline,
            generation=generation,
            system_identifier=lineage.system_identifier,
            timeline=lineage.timeline,
            snapshot=str(snapshot),
            lsn=str(lsn),
            keeps=keeps,
            recovers_all=recovers_all,
        )
        forgotten = SQL["forget_delivered"].bind(str, pipeline=self._pipeline)
        self._write(begun, *(() if keeps else (forgotten,)))

    def save_recovered(self, generation: str, key: tuple[str, str], rows: int) -> None:
        """A part of the table is delivered, up to a key."""
        at, id_ = key
        self._write(self._bind("save_recovered", generation, at=at, id=id_, rows=rows))

    def end_recovery(self, generation: str, newest_at: datetime | None) -> None:
        """All of it is delivered."""
        self._write(self._bind("end_recovery", generation, newest_at=newest_at), self._seen())

    def save_delivered(self, generation: str, xids: Sequence[int]) -> None:
        """The messages of some transactions are delivered."""
        self._write(self._bind("save_delivered", generation, xids=list(map(str, xids))))

    def save_newest(self, generation: str, newest_at: datetime) -> None:
        """Messages up to a time are delivered."""
        self._write(self._bind("save_newest", generation, newest_at=newest_at))

    def look_around(self) -> tuple[Snapshot, Lsn]:
        """What has committed by now, and where the WAL ends then: once all before that is delivered, so is all of it."""
        with translated(self._url):
            connection = self._opened()
            (snapshot,) = fetch_sync(connection, SQL["look_around"].bind(str))
            (end,) = fetch_sync(connection, SQL["wal_end"].bind(Lsn))
        return Snapshot.parse(snapshot), end

    def save_snapshot(self, generation: str, snapshot: Snapshot, lsn: Lsn, timeline: int) -> None:
        """All that a snapshot sees is delivered; an older one than is saved is left alone."""
        saved = self._bind("save_snapshot", generation, snapshot=str(snapshot), lsn=str(lsn), timeline=timeline)
        self._write(saved, self._seen())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _seen(self) -> Statement[str]:
        return SQL["forget_seen"].bind(str, pipeline=self._pipeline)

    def _bind(self, name: str, generation: str, **values: object) -> Statement[str]:
        return SQL[name].bind(str, pipeline=self._pipeline, generation=generation, **values)

    def _write(self, *statements: Statement[str]) -> None:
        """Run statements in one transaction, if the checkpoint is still this run's own."""
        held = SQL["hold_checkpoint"].bind(int, pipeline=self._pipeline, epoch=self._epoch)
        with translated(self._url):
            try:
                connection = self._opened()
                with connection.transaction():
                    if not fetch_sync(connection, held):
                        raise self._fenced()
                    for statement in statements:
                        execute_sync(connection, statement)
            except psycopg.OperationalError:
                self.close()
                raise

    def _fenced(self) -> HeadwaterError:
        return HeadwaterError(
            f"the outbox checkpoint of pipeline {self._pipeline!r} is not this run's any more: another run has taken it "
            "over, or somebody has reset it; start again"
        )

    def _opened(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect_sync(self._url)
            # It is worth as much as what was delivered, and a standby that commits wait for must not hold that up.
            execute_sync(self._connection, SQL["commit_locally"].bind(str))
        return self._connection
