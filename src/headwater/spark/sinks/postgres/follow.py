"""Tables of the target that follow those of the source when they are altered, each by the policy of the sink.

A table is altered in the transaction that applies the first change of its new shape, behind all changes of the old one.
Where the stream does not tell what old rows have since, the table is asked to be read as a whole again.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from headwater.capture.tables import request_load
from headwater.model import Lsn, Position
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.frame import Layout
from headwater.spark.rules import SchemaChanges
from headwater.spark.sinks.postgres import layout_statements as statements
from headwater.spark.sinks.postgres.apply import Staging
from headwater.spark.sinks.postgres.evolution import Evolution, additions, difference, inherited
from headwater.spark.sinks.postgres.layout_statements import Followed
from headwater.spark.sinks.postgres.reshape import Reshaper
from headwater.spark.sinks.postgres.session import Address, Session
from headwater.spark.sinks.postgres.statements import Table
from headwater.spark.sinks.postgres.target import Fit, Sent
from headwater.spark.sources.layouts import read_layouts

BEGINNING = Position(Lsn(0), 0)
_LATE = "changes came that are older than its shape in the target"
_UNKNOWN = "the target did not have all of its columns"


class Shaped(Protocol):
    """Changes of one table with the same columns, and where the first of them is."""

    @property
    def sent(self) -> Sent: ...

    @property
    def layout(self) -> Layout | None:
        """What the table looks like; None if nobody can tell any more, as behind a transform."""

    @property
    def start(self) -> Position: ...


@dataclass(frozen=True, slots=True)
class Follower:
    """Says how changes go into the tables of the target, once those have followed; for one transaction.

    `doubts` are the tables to be read as a whole again, with the reasons; `notes` say what was done.
    """

    address: Address
    session: Session
    doubts: dict[Table, list[str]] = field(default_factory=dict)
    notes: dict[Table, list[str]] = field(default_factory=dict)

    def fit(self, table: Table, changes: Shaped) -> tuple[Fit, Staging]:
        """How changes go into a table; raises Misfit if it cannot follow, or must not."""
        known = self.session.known(*table, changes.sent, changes.layout)
        if known is not None:
            return known
        rule, is_narrow = self.address.schema_changes, self.address.schema_changes is SchemaChanges.IGNORE
        if rule.follows and changes.layout is not None:
            is_narrow = self._follow(table, changes.layout, changes)
        elif rule.follows and changes.sent.has_new_rows:
            self._add_missing(table, changes)
        return self.session.fit(*table, changes.sent, changes.layout, is_narrow=is_narrow)

    def bring(self, table: Table, layout: Layout, identity: Sequence[str], position: Position) -> None:
        """Have a table of the target look as it is read as a whole, with all that is to change from a position on."""
        followed, reshaper = self._locked(table), Reshaper(self.session.connection, table)
        if followed is None:
            evolution = additions(layout, _missing(reshaper, (column.name for column in layout.columns)))
        else:
            evolution = difference(followed.layout, layout)
        self._reshape(reshaper, evolution, identity)
        self._save(table, Followed(layout, position))

    def take_over(self, layouts: Mapping[Table, Layout]) -> None:
        """Take tables whose columns are there for what they are, unless it is known what they looked like before.

        Without a policy to follow, what was known is forgotten: rows may be written without columns that come later.
        """
        if not self.address.schema_changes.follows:
            execute_sync(self.session.connection, statements.forget_layouts(self.address))
            return
        known = find_followed(self.session.connection, self.address, list(layouts))
        for table, layout in layouts.items():
            if table not in known:
                self._save(table, Followed(layout, BEGINNING))

    def request_loads(self) -> None:
        """Ask for the tables that are in doubt; before the transaction ends, so that no doubt is forgotten."""
        if not self.doubts:
            return
        url = self.address.state_url
        with translated(url), closing(connect_sync(url)) as state:
            for table, reasons in self.doubts.items():
                request_load(state, self.address.pipeline, table, "; ".join(dict.fromkeys(reasons)))

    def report(self) -> list[str]:
        """What was done to which table, and why it is read again, in sentences."""
        found = []
        for table in dict.fromkeys((*self.notes, *self.doubts)):
            parts = [f"it followed the source ({', '.join(done)})"] if (done := self.notes.get(table)) else []
            if table in self.doubts:
                parts.append(f"it is read as a whole again, for {'; '.join(dict.fromkeys(self.doubts[table]))}")
            found.append(f"table {'.'.join(table)}: {', and '.join(parts)}")
        return found

    def _follow(self, table: Table, layout: Layout, changes: Shaped) -> bool:
        """Alter a table as the source did; whether changes are older than that, so that columns may be missing."""
        followed, reshaper = self._locked(table), Reshaper(self.session.connection, table)
        if followed is None:
            missing = _missing(reshaper, changes.sent.columns)
            evolution, layout_now = additions(layout, missing, *([_UNKNOWN] if missing else [])), layout
        else:
            evolution, layout_now = difference(followed.layout, layout), inherited(followed.layout, layout)
            if evolution.changes_shape and changes.start < followed.position:
                self.doubts.setdefault(table, []).append(_LATE)
                return True
        self._reshape(reshaper, evolution, changes.sent.identity or layout.key or ())
        self._doubt(table, reshaper, evolution)
        # What the catalog has told is not given up for less.
        if followed is None or evolution.changes_shape or (layout.is_known and layout_now != followed.layout):
            self._save(table, Followed(layout_now, changes.start))
        return False

    def _add_missing(self, table: Table, changes: Shaped) -> None:
        """Behind a transform only names can tell: add the columns that are missing and that the source has."""
        reshaper = Reshaper(self.session.connection, table)
        missing = _missing(reshaper, changes.sent.columns)
        if not missing and not _lacks_key(reshaper, changes.sent.identity):
            return
        self._locked(table)
        layout = read_layouts(self.address.source_url, [table]).get(table)
        missing = _missing(reshaper, changes.sent.columns)
        if layout is not None:
            evolution = additions(layout, missing, *([f"column {name} was added" for name in missing]))
            self._reshape(reshaper, evolution, changes.sent.identity or ())
            self._doubt(table, reshaper, evolution)

    def _reshape(self, reshaper: Reshaper, evolution: Evolution, identity: Sequence[str]) -> None:
        reshaper.follow(evolution, identity)
        self.session.forget_table(*reshaper.table)
        if done := str(evolution):
            self.notes.setdefault(reshaper.table, []).append(done)

    def _doubt(self, table: Table, reshaper: Reshaper, evolution: Evolution) -> None:
        reasons = list(reshaper.doubts)
        if self.address.schema_changes is SchemaChanges.RESNAPSHOT and evolution.changes_shape:
            reasons.append("its shape has changed")
        if reasons:
            self.doubts.setdefault(table, []).extend(reasons)

    def _locked(self, table: Table) -> Followed | None:
        """What a table looked like when it last followed, once nobody else is about to have it follow."""
        fetch_sync(self.session.connection, statements.lock_layout(self.address, table))
        return find_followed(self.session.connection, self.address, [table]).get(table)

    def _save(self, table: Table, followed: Followed) -> None:
        execute_sync(self.session.connection, statements.save_layout(self.address, table, followed))


def find_followed(connection: Connection, address: Address, tables: Sequence[Table]) -> Mapping[Table, Followed]:
    """What is known of how tables looked."""
    return statements.parse_layouts(fetch_sync(connection, statements.list_layouts(address, tables)))


def _missing(reshaper: Reshaper, names: Iterable[str]) -> list[str]:
    """Those of some columns that a table of the target lacks."""
    there = {column.name for column in reshaper.target.columns}
    return [name for name in names if name not in there]


def _lacks_key(reshaper: Reshaper, identity: Sequence[str] | None) -> bool:
    return identity is not None and not any(set(key) == set(identity) for key in reshaper.target.keys)
