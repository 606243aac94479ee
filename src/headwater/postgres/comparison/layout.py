"""What of a table is compared: the columns that both sides have and the source sends, and the key that tells rows apart."""

from dataclasses import dataclass

from headwater.postgres.catalog import Column, Table


class Incomparable(Exception):
    """A table cannot be compared; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table of one side, with its columns; the types of these are named with their schema."""

    table: Table
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the two sides of a table are held against each other.

    `columns` are compared by name, whatever their order is; `key` are those of them that tell rows apart, none if rows are
    only told apart by all that they hold. `lacking` are columns that the target lacks, `surplus` those that only the target
    has, `generated` those that the source computes and does not send.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]
    lacking: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()


def plan_layout(source: Relation, target: Relation) -> Layout:
    """The columns and the key to compare by; raises Incomparable if the sides have no column in common."""
    found = {column.name for column in target.columns}
    sent = [column.name for column in source.columns if not column.generated]
    columns = tuple(name for name in sent if name in found)
    if not columns:
        raise Incomparable(f"table {source.table} has no column in common with that of the target; correct its definition")
    known = {column.name for column in source.columns}
    return Layout(
        columns,
        _key(source.table, columns),
        lacking=tuple(name for name in sent if name not in found),
        surplus=tuple(column.name for column in target.columns if column.name not in known),
        generated=tuple(c.name for c in source.columns if c.generated and c.name in found),
    )


def _key(table: Table, columns: tuple[str, ...]) -> tuple[str, ...]:
    for key in (table.key, table.identity):
        if key and set(key) <= set(columns):
            return tuple(key)
    return ()
