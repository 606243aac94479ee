"""Reading tables as a whole, from the planner's side: which, when, and in which pieces.

An attempt is opened by a thread of its own, since it may have to wait for other transactions, and the stream goes on
meanwhile. Its snapshot is alive as long as this process holds it: of an attempt that another process has begun nothing can
be read any more, and its tables are begun anew.
"""

import logging
import random
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Event, Thread

from pyspark.sql.datasource import InputPartition

from headwater import failpoints
from headwater.capture.pieces import Piece, Readable, describe, sizes, unreadable
from headwater.capture.slots import SourceSlot, ensure_slot
from headwater.capture.snapshot import OpenSnapshot, Stopped, open_snapshot
from headwater.capture.tables import Name, PipelineTable, Progress, Reading, SlotRecord, State, TableStore
from headwater.errors import HeadwaterError
from headwater.model import Lineage, Lsn
from headwater.postgres.backoff import Backoff
from headwater.postgres.catalog import Table, list_tables, parse_pattern, select_tables
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.publication import Found, find_publication, publish_tables
from headwater.spark.rules import SnapshotRule
from headwater.spark.sources.load import Load
from headwater.spark.sources.offset import Offset
from headwater.spark.sources.options import Options

_log = logging.getLogger(__name__)

# Tables of up to 64 MiB in all are read at one snapshot; a larger one has its own, so that no transaction outlasts it.
_GROUP_PAGES = 8192
# While no other table waits, a batch has so many times more pieces: each batch costs some tenths of a second.
_PIECES_ALONE = 8
# How often to look for what was asked for, and for tables that have come to match a pattern.
_LOOK_SECONDS, _FIND_SECONDS = 1.0, 10.0
# Why a table is left that may come back, other than one that the user has taken out of the pipeline.
_TAKEN_OUT = "taken out of the publication"


@dataclass(frozen=True, slots=True)
class PiecePartition(InputPartition):
    """A piece of a table for a task to read."""

    attempt: str
    exported: str
    piece: Piece
    lineage: Lineage
    until: Lsn
    read_at: datetime


class _Attempt:
    """An attempt of this process: opened in a thread, then held open until its pieces are delivered."""

    def __init__(self, options: Options, load: Load) -> None:
        self.id = load.attempt
        self.readable: list[Readable] = []
        self.failed: dict[Name, str] = {}
        self.snapshot: OpenSnapshot | None = None
        self._options, self._tables = options, load.tables
        self._failure: Exception | None = None
        self._word: str | None = None
        self._stopping = Event()
        self.ended = Event()
        self._thread = Thread(target=self._run, name=f"snapshot {load.attempt}", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether it can be read; raises what kept it from that."""
        if self._failure is not None:
            raise self._failure
        return self.ended.is_set()

    def close(self) -> None:
        self._stopping.set()
        # One that hangs in a lock lets go by itself when it is through.
        self._thread.join(timeout=5)
        self._let_go()

    def _let_go(self) -> None:
        if self.snapshot is not None:
            self.snapshot.close()

    def take_word(self) -> str | None:
        """What it has to say about its waiting, once."""
        word, self._word = self._word, None
        return word

    def _tell(self, word: str) -> None:
        self._word = word

    def _run(self) -> None:
        try:
            self._open_patiently()
        except Stopped:
            pass
        except Exception as exc:  # noqa: BLE001 - whatever ends the thread must reach the planner
            self._failure = exc
        finally:
            if self._stopping.is_set():
                self._let_go()
            self.ended.set()

    def _open_patiently(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._open()
                return
            except HeadwaterError as exc:
                if not exc.retryable:
                    raise
                failures += 1
                wait = Backoff().after(failures, random.random()).total_seconds()
                _log.warning("%s; trying again in %.1f s", exc, wait, extra={"slot": self._options.slot})
                self._stopping.wait(wait)

    def _open(self) -> None:
        url, publication = self._options.url, self._options.publication
        with translated(url), closing(connect_sync(url)) as connection:
            self.failed = publish_tables(connection, publication, self._tables)
            published = [table for table in self._tables if table not in self.failed]
            # What cannot be read at all is known before anybody waits for it.
            self.failed |= unreadable(connection, publication, published)
        wanted = [table for table in self._tables if table not in self.failed]
        if wanted:
            self._let_go()
            self.snapshot = snapshot = open_snapshot(url, wanted, self._stopping, self._tell)
            with translated(url):
                locked = [table for table in wanted if table not in snapshot.failed]
                self.readable, failed = describe(snapshot.connection, publication, locked)
            failpoints.hit("snapshot.opened")
            self.failed |= {**snapshot.failed, **failed}


class Loader:
    """Plans the reading of tables for one query."""

    def __init__(self, options: Options, store: TableStore) -> None:
        self._options, self._store = options, store
        self._attempt: _Attempt | None = None
        self._mine: set[str] = set()
        self._oids: dict[Name, int] = {}
        self._generation = ""
        self._saved: set[str] = set()
        self._tables: list[PipelineTable] = []
        self._looked = self._found = 0.0

    def enlist(self) -> list[PipelineTable]:
        """Take the tables in that the options name; returns all that are known."""
        options = self._options
        with translated(options.url), closing(connect_sync(options.url)) as connection:
            tables, published = list_tables(connection), find_publication(connection, options.publication)
        listed = self._store.tables()
        self._request_strayed(listed, tables, published)
        if options.whole_publication and published is not None:
            self._take_named(listed, tables, published)
            listed = self._store.tables()
        known = {table.key for table in listed}
        named = [pattern for pattern in options.tables if any(map(parse_pattern(pattern).matches, tables))]
        fresh = [(table.schema, table.name) for table in select_tables(tables, named)]
        fresh = [table for table in fresh if table not in known]
        if options.snapshot is SnapshotRule.NEVER and fresh:
            fresh = self._published(fresh)
        state: State = "wanted" if options.snapshot is SnapshotRule.INITIAL else "streaming"
        self._store.enlist(fresh, state, "found" if known else "initial")
        self._tables, self._looked = self._store.tables(), time.monotonic()
        return self._tables

    def _request_strayed(self, listed: Sequence[PipelineTable], tables: Sequence[Table], published: Found | None) -> None:
        """Have tables read again that somebody took out of the publication, or dropped and made anew."""
        there = {(table.schema, table.name): table for table in tables}
        for one in listed:
            table = there.get(one.key)
            if one.state != "streaming" or table is None or published is None:
                continue
            is_out = not published.holds(table)
            is_other = one.table_oid is not None and one.table_oid != table.oid
            if is_out and self._options.whole_publication:
                # Meant so: whoever wants it again puts it back, and then it is read again.
                if self._options.snapshot is SnapshotRule.INITIAL:
                    self._store.leave(one.key, _TAKEN_OUT)
            elif is_out or is_other:
                why = "it was dropped and made anew" if is_other else "it was taken out of the publication"
                _log.debug("table %s is read again: %s", table, why, extra={"slot": self._options.slot})
                self._store.request(one.key, why)

    def _take_named(self, listed: Sequence[PipelineTable], tables: Sequence[Table], published: Found) -> None:
        """Take in what somebody has added to the publication, by name."""
        known = {table.key: table for table in listed}
        patterns = [parse_pattern(pattern) for pattern in self._options.tables]
        others = (table for table in tables if not any(pattern.matches(table) for pattern in patterns))
        named = [(table.schema, table.name) for table in others if table.oid in published.tables]
        if self._options.snapshot is SnapshotRule.NEVER:
            # Their changes come already.
            self._store.enlist([table for table in named if table not in known], "streaming", "published")
            return
        back = [one.key for one in listed if (one.state, one.reason) == ("left", _TAKEN_OUT)]
        there = {(table.schema, table.name) for table in tables if published.holds(table)}
        for table in (*(table for table in named if table not in known), *(table for table in back if table in there)):
            self._store.add(table)

    def _published(self, tables: Sequence[Name]) -> list[Name]:
        """Those of some tables that are published, as far as there is a publication yet."""
        url, publication = self._options.url, self._options.publication
        with translated(url), closing(connect_sync(url)) as connection:
            if find_publication(connection, publication) is None:
                return list(tables)
            failed = publish_tables(connection, publication, tables)
        return [table for table in tables if table not in failed]

    def ensure_slot(self, delivered: Lsn) -> SlotRecord:
        """The record of the slot, which is there; raises SlotLost if it is not the one that we knew."""
        options = self._options
        source = SourceSlot(options.url, options.slot, options.publication, options.tables)
        record = ensure_slot(source, self._store, delivered)
        self._generation = record.generation
        return record

    def save_confirmed(self, position: Lsn) -> None:
        """Write down how far the slot is about to be confirmed."""
        self._store.save_confirmed(self._generation, position)

    def plan(self, offset: Offset) -> Offset:
        """The offset with what there is to do next about tables; everything up to `offset` is delivered for good."""
        load = offset.load
        if load is None:
            return self._begin(offset)
        if load.is_complete:
            self._save_loaded(load)
            return offset
        if load.attempt not in self._mine:
            return self._begin_again(offset, load)
        if load.read is None:
            return self._opened(offset, load)
        self._save_progress(load)
        if load.delivered < load.pieces:
            delivered = min(load.pieces, load.delivered + self._pieces(offset))
            return replace(offset, load=replace(load, delivered=delivered))
        self._close_attempt()
        return replace(offset, load=replace(load, is_complete=True))

    def wait(self, offset: Offset, seconds: float) -> bool:
        """Wait a little for an attempt to open; returns whether there is anything to wait for."""
        if offset.load is not None and self._attempt is not None and offset.load.read is None:
            self._attempt.ended.wait(seconds)
            return True
        return offset.load is not None or bool(self._due())

    def partitions(self, load: Load, first: int, last: int, lineage: Lineage) -> list[PiecePartition]:
        """Pieces of an attempt; none if it is not alive."""
        attempt = self._attempt
        if attempt is None or attempt.id != load.attempt or attempt.snapshot is None:
            return []
        snapshot = attempt.snapshot
        pieces = [piece for table in attempt.readable for piece in table.pieces][first:last]
        facts = (lineage, snapshot.read.until, snapshot.read_at)
        return [PiecePartition(load.attempt, snapshot.exported, piece, *facts) for piece in pieces]

    def close(self) -> None:
        self._close_attempt()
        self._store.close()

    def _begin_again(self, offset: Offset, load: Load) -> Offset:
        """Another attempt in place of one that has died, without the tables that it could not read."""
        self._tables, self._looked = self._store.tables(), time.monotonic()
        due = {table.key: table.request for table in self._due()}
        tables = [table for table in load.tables if table in due]
        dropped = tuple(sorted({*offset.dropped, *(table for table in load.tables if table not in due)}))
        again = self._named(tables, [due[table] for table in tables], offset) if tables else None
        return replace(offset, load=again, dropped=dropped)

    def _pieces(self, offset: Offset) -> int:
        """How many pieces go into one batch: few, so that other tables do not wait for long, if there are any."""
        loaded = () if offset.load is None else offset.load.tables
        others = (table for table in self._tables if table.state == "streaming" and table.key not in loaded)
        return offset.lanes * (1 if any(others) else _PIECES_ALONE)

    def _begin(self, offset: Offset) -> Offset:
        """With tables that are to be read, an attempt to read some of them."""
        self._look()
        left = {table.key for table in self._tables if table.state == "left"}
        if left - set(offset.dropped):
            offset = replace(offset, dropped=tuple(sorted({*offset.dropped, *left})))
        due = self._due()
        group = self._group([table.key for table in due]) if due else ()
        if not group:
            return offset
        by_key = {table.key: table for table in due}
        added = tuple(sorted({*offset.added, *(name for name in group if by_key[name].is_added)}))
        dropped = tuple(name for name in offset.dropped if name not in group)
        load = self._named(group, tuple(by_key[name].request for name in group), offset)
        return replace(offset, load=load, added=added, dropped=dropped)

    def _due(self) -> list[PipelineTable]:
        return [table for table in self._tables if table.state == "wanted" and table.is_due]

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._found >= _FIND_SECONDS:
            self._found = self._looked = now
            self.enlist()
        elif now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._tables = self._store.tables()

    def _group(self, tables: Sequence[Name]) -> tuple[Name, ...]:
        """The tables to read at one snapshot: small ones together, the smallest first."""
        url = self._options.url
        with translated(url), closing(connect_sync(url)) as connection:
            pages = sizes(connection, tables)
        for table in tables:
            if table not in pages:
                self._fail(table, "it does not exist; create it, or take it out of the pipeline")
        chosen: list[Name] = []
        for table in sorted(pages, key=lambda table: (pages[table], table)):
            if chosen and sum(pages[one] for one in chosen) + pages[table] > _GROUP_PAGES:
                break
            chosen.append(table)
        return tuple(chosen)

    def _named(self, tables: Sequence[Name], requests: Sequence[int], offset: Offset) -> Load:
        """A new attempt of ours, whose snapshot is taken once the offset that holds it is committed."""
        attempt = uuid.uuid4().hex[:12]
        self._mine.add(attempt)
        return Load(attempt, tuple(tables), tuple(requests), offset.position)

    def _opened(self, offset: Offset, load: Load) -> Offset:
        """The attempt with its snapshot, if that is there, and its first pieces; without the tables that cannot be read."""
        if self._attempt is None or self._attempt.id != load.attempt:
            self._close_attempt()
            self._attempt = _Attempt(self._options, load)
        attempt = self._attempt
        if not attempt.is_open:
            word = attempt.take_word()
            if word is not None:
                for table in load.tables:
                    self._fail(table, word)
            return offset
        for table, reason in attempt.failed.items():
            self._fail(table, reason)
        dropped = tuple(sorted({*offset.dropped, *attempt.failed}))
        if attempt.snapshot is None or not attempt.readable:
            self._close_attempt()
            return replace(offset, dropped=dropped, load=None)
        tables = tuple(table.table for table in attempt.readable)
        self._oids |= {table.table: table.oid for table in attempt.readable}
        requests = dict(zip(load.tables, load.requests, strict=True))
        total = sum(len(table.pieces) for table in attempt.readable)
        opened = replace(
            load,
            tables=tables,
            requests=tuple(requests[table] for table in tables),
            read=attempt.snapshot.read,
            pieces=total,
            delivered=min(total, self._pieces(offset)),
        )
        self._save_progress(replace(opened, delivered=0))
        return replace(offset, dropped=dropped, load=opened)

    def _fail(self, table: Name, reason: str) -> None:
        _log.debug("table %s cannot be read yet: %s", ".".join(table), reason, extra={"slot": self._options.slot})
        self._store.save_error(table, reason)
        self._looked = 0.0
        self._tables = self._store.tables()

    def _save_progress(self, load: Load) -> None:
        if self._attempt is None:
            return
        progress = []
        for readable in self._attempt.readable:
            first = readable.pieces[0].number if readable.pieces else 0
            done = max(0, min(load.delivered - first, len(readable.pieces)))
            progress.append(Progress(readable.table, done, len(readable.pieces), readable.rows))
        self._store.save_progress(load.attempt, progress)

    def _save_loaded(self, load: Load) -> None:
        if load.attempt not in self._saved and load.read is not None:
            read, oids = load.read, [self._oids.get(table) for table in load.tables]
            reading = Reading(load.attempt, load.tables, load.requests, oids, str(read.snapshot), read.until)
            self._store.save_loaded(reading)
            self._saved.add(load.attempt)
            self._looked = 0.0

    def _close_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
        self._attempt = None
