"""A table of the target altered as that of the source was, inside the caller's transaction.

What is done already, or by hand, is left as it is. Where the rows that are there stand in the way of a new type or key, they
give way: the table is then to be read as a whole again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from headwater.postgres.connect import Connection
from headwater.postgres.statements import Statement, execute_sync, fetch_sync
from headwater.spark.frame import LayoutColumn
from headwater.spark.sinks.postgres import layout_statements as statements
from headwater.spark.sinks.postgres.evolution import Evolution, Retyped
from headwater.spark.sinks.postgres.layout_statements import OwnKey
from headwater.spark.sinks.postgres.loading_statements import empty_target, list_names
from headwater.spark.sinks.postgres.statements import Table, find_missing_types, limit_waiting
from headwater.spark.sinks.postgres.target import Misfit, Target, read_targets

# Long enough for a query that is at work, too short for one that reads all day: whatever comes after it would wait, too.
_LOCK_MILLISECONDS = 10_000
_FOR_EVER = 0
# Values that are none of a type, and rows that a constraint forbids.
_ROW_IS_WRONG = ("22", "23")
# A missing right, something that depends on a column, a name that is taken, what cannot be done to such a table.
_FORBIDDEN = ("42", "2B", "0A")


@dataclass(slots=True)
class Reshaper:
    """Alters one table; `doubts` say afterwards why its rows may be wrong."""

    connection: Connection
    table: Table
    doubts: list[str] = field(default_factory=list)

    @property
    def target(self) -> Target:
        """The table as it is now; raises Misfit if it is missing."""
        found = read_targets(self.connection, [self.table]).get(self.table)
        if found is None:
            raise Misfit(f"table {'.'.join(self.table)} is missing in the target; start the pipeline again to have it made")
        return found

    def follow(self, evolution: Evolution, identity: Sequence[str]) -> None:
        """Do what was done at the source, and see to it that rows are found by the columns of their identity."""
        self.doubts += evolution.doubts
        target = self.target
        if not evolution.changes_shape and not evolution.relaxed and self._has_right_keys(target, identity):
            return
        fetch_sync(self.connection, limit_waiting(_LOCK_MILLISECONDS))
        self._drop(target, evolution)
        self._rename(self.target, evolution.renamed)
        self._drop_key(self.target, evolution.gone_key)
        for one in evolution.retyped:
            self._retype(self.target, one)
        self._relax(self.target, evolution.relaxed)
        for column in evolution.added:
            self._add(self.target, column)
        self._ensure_key(self.target, identity)
        fetch_sync(self.connection, limit_waiting(_FOR_EVER))

    def _drop(self, target: Target, evolution: Evolution) -> None:
        names = _names(target)
        # One that has the new name already was added as if it were another; its old self holds nothing that is missed.
        twins = [old for old, new in evolution.renamed if new in names and new not in _old_names(evolution)]
        for name in (*evolution.dropped, *twins):
            if name in names:
                self._alter(statements.drop_column(target, name))
        if twins:
            self.doubts += [f"column {name} was renamed" for name in twins]

    def _rename(self, target: Target, renamed: Sequence[tuple[str, str]]) -> None:
        names = _names(target)
        wanted = [(old, new) for old, new in renamed if old in names]
        old_names = {old for old, _ in wanted}
        # Names that are swapped are in each other's way.
        if any(new in old_names for _, new in wanted):
            aside = [(old, f"headwater_{number}", new) for number, (old, new) in enumerate(wanted)]
            for old, between, _ in aside:
                self._alter(statements.rename_column(target, old, between))
            wanted = [(between, new) for _, between, new in aside]
        for old, new in wanted:
            self._alter(statements.rename_column(target, old, new))

    def _drop_key(self, target: Target, key: Sequence[str]) -> None:
        if key and target.has_primary and set(target.keys[0]) == set(key):
            for one in fetch_sync(self.connection, list_names(target)):
                if one.is_primary:
                    self._alter(statements.drop_constraint(target, one.name))

    def _retype(self, target: Target, retyped: Retyped) -> None:
        column = retyped.column
        if column.name not in _names(target):
            self._add(target, column)
            return
        type_name = self._type_name(target, column)
        if not retyped.is_rewritten:
            self._alter(statements.widen_column(target, column.name, type_name))
            return
        try:
            self._alter(statements.retype_column(target, column.name, type_name))
        except psycopg.Error as exc:
            if not _is_wrong(exc):
                raise
            self._make_room(target, column.name)
            self._alter(statements.clear_column(target, column.name, type_name))

    def _make_room(self, target: Target, name: str) -> None:
        """Let values go that stand in the way of another type; without its key, a row goes as a whole."""
        self.doubts.append(f"values of column {name} do not fit its new type")
        if any(name in key for key in target.keys):
            self._alter(empty_target(target))
        else:
            self._alter(statements.drop_not_null(target, name))

    def _relax(self, target: Target, names: Sequence[str]) -> None:
        key = target.keys[0] if target.has_primary else ()
        for name in names:
            if name in _names(target) and name not in key:
                self._alter(statements.drop_not_null(target, name))

    def _add(self, target: Target, column: LayoutColumn) -> None:
        if column.name in _names(target):
            # Whoever has added it knows best, but what old rows have there is not known here.
            self.doubts.append(f"the target had column {column.name} before")
            return
        type_name = self._type_name(target, column)
        if column.missing is None:
            self._alter(statements.add_column(target, column.name, type_name))
            return
        self._alter(statements.add_filled_column(target, column.name, type_name, column.missing))
        self._alter(statements.drop_default(target, column.name))

    def _ensure_key(self, target: Target, identity: Sequence[str]) -> None:
        """Make what tells rows apart, and let go of what we made for that and is not it any more."""
        for own in self._stale_keys(target, identity):
            self._alter(statements.drop_identity(target, own.name))
        if not identity or _has_key(target, identity) or not set(identity) <= set(_names(target)):
            return
        make: Callable[..., Statement[None]] = (
            statements.create_identity if target.has_primary else statements.add_primary_key
        )
        try:
            self._alter(make(target, identity))
        except psycopg.Error as exc:
            if not _is_wrong(exc):
                raise
            self.doubts.append(f"rows are not told apart by {', '.join(identity)}, which is the key now")
            self._alter(empty_target(target))
            self._alter(make(target, identity))

    def _has_right_keys(self, target: Target, identity: Sequence[str]) -> bool:
        return (not identity or _has_key(target, identity)) and not self._stale_keys(target, identity)

    def _stale_keys(self, target: Target, identity: Sequence[str]) -> list[OwnKey]:
        """Indexes that we made when rows were told apart by other columns, in which they may repeat by now."""
        own = fetch_sync(self.connection, statements.list_own_keys(target))
        return [one for one in own if set(one.columns) != set(identity)]

    def _type_name(self, target: Target, column: LayoutColumn) -> str:
        """The type in words; raises Misfit if the target does not have it."""
        if not column.type_name:
            return fetch_sync(self.connection, statements.name_type(column))[0]
        if fetch_sync(self.connection, find_missing_types([column.type_name])):
            raise Misfit(
                f"column {column.name!r} of {target} is of type {column.type_name}, which the target does not have; create "
                "the type there, or the extension that brings it"
            )
        return column.type_name

    def _alter(self, statement: Statement[None]) -> None:
        try:
            with self.connection.transaction():
                execute_sync(self.connection, statement)
        except psycopg.Error as exc:
            if not (exc.sqlstate or "").startswith(_FORBIDDEN) or _is_wrong(exc):
                raise
            text = _shown(statement, self.connection)
            raise Misfit(
                f"table {'.'.join(self.table)} of the target cannot follow that of the source "
                f"({exc.diag.message_primary or type(exc).__name__}); run `{text}` there as its owner, after taking away "
                "what is in the way, and start again"
            ) from exc


def _is_wrong(error: psycopg.Error) -> bool:
    """Whether it is rows that are in the way."""
    return (error.sqlstate or "").startswith(_ROW_IS_WRONG) or isinstance(error, psycopg.errors.CannotCoerce)


def _names(target: Target) -> list[str]:
    return [column.name for column in target.columns]


def _old_names(evolution: Evolution) -> set[str]:
    return {old for old, _ in evolution.renamed}


def _has_key(target: Target, columns: Sequence[str]) -> bool:
    return any(set(key) == set(columns) for key in target.keys)


def _shown(statement: Statement[None], connection: Connection) -> str:
    """A statement in one line, without its comment."""
    lines = sql.Composed([statement.query]).as_string(connection).splitlines()
    return " ".join(line.strip() for line in lines if not line.startswith("--"))
