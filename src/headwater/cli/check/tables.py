"""What a table's kind, keys, rights and columns mean for capture. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwater.cli.check.finding import Finding, error, ok, refused, warning
from headwater.errors import HeadwaterError
from headwater.postgres.catalog import Column, Rights, Server, Table, leaves_without_identity
from headwater.postgres.replication.publication import require_publishable
from headwater.postgres.types.registry import Kind, Types

# The first version that can publish stored generated columns.
_GENERATED_PUBLISHED = 18


@dataclass(frozen=True, slots=True)
class Database:
    """All that the checks of tables look at. `publishes_generated` if the publication sends stored generated columns."""

    server: Server
    tables: Sequence[Table]
    columns: Sequence[Column]
    rights: Sequence[Rights]
    types: Types
    publishes_generated: bool = False

    def columns_of(self, table: Table) -> list[Column]:
        return [column for column in self.columns if column.table_oid == table.oid]

    def rights_on(self, table: Table) -> Rights | None:
        return next((rights for rights in self.rights if rights.oid == table.oid), None)


def check_table(table: Table, database: Database) -> list[Finding]:
    """The findings about a table; the first is the good news, if there is nothing worse than a warning."""
    try:
        require_publishable(table)
    except HeadwaterError as exc:
        return [refused(f"table {table}", exc)]
    found = [*_identity(table, database), *_rights(table, database), *_columns(table, database)]
    return found if any(finding.level == "error" for finding in found) else [_summary(table, database), *found]


def check_left_out(left_out: Sequence[Table]) -> Iterator[Finding]:
    """What a wildcard matched that cannot be captured and is worth a word."""
    for table in left_out:
        if table.kind == "f":
            yield warning(f"table {table}", "left out: a foreign table", "capture it where its rows are")
        elif table.persistence == "u":
            yield warning(f"table {table}", "left out: unlogged", f"run `alter table {table} set logged` to capture it")


def _summary(table: Table, database: Database) -> Finding:
    columns = f"{len(database.columns_of(table))} columns"
    partitions = sum(table.oid in other.ancestors and other.kind == "r" for other in database.tables)
    kind = f", partitioned in {partitions}" if table.kind == "p" else ""
    named_by = {
        "d": f"primary key ({', '.join(table.key)})" if table.key else "none",
        "i": f"unique index ({', '.join(table.identity)})",
        "f": "the whole row",
        "n": "none",
    }[table.replica_identity]
    return ok(f"table {table}", f"{columns}{kind}; replica identity: {named_by}")


def _identity(table: Table, database: Database) -> Iterator[Finding]:
    subject = f"table {table}"
    for leaf in leaves_without_identity(database.tables, table):
        reason, remedy = _why_no_identity(leaf)
        yield error(
            subject if leaf.oid == table.oid else f"{subject}, partition {leaf}",
            f"no replica identity ({reason}): its updates and deletes cannot be captured, and fail once it is published",
            f"{remedy}, or run `alter table {leaf} replica identity full`",
        )
    if table.has_identity and not table.key and not table.identity:
        yield warning(
            subject,
            "no primary key: every update and delete carries the whole old row, and targets cannot merge by key",
            "add a primary key, or a unique index on columns that are not null as replica identity",
        )


def _why_no_identity(table: Table) -> tuple[str, str]:
    if table.replica_identity != "d":
        setting = "nothing" if table.replica_identity == "n" else "an index that is gone"
        return f"it is set to {setting}", f"run `alter table {table} replica identity default` if it has a primary key"
    if table.key:
        return "a deferrable primary key does not serve", "make the key not deferrable"
    return "it has no primary key", "add one"


def _rights(table: Table, database: Database) -> Iterator[Finding]:
    subject, rights, user = f"table {table}", database.rights_on(table), database.server.user
    if rights is None:
        return
    # The stream asks for no right on a table; only a snapshot reads it.
    if not rights.can_use_schema:
        yield warning(
            subject,
            f"role {user} may not use schema {table.schema}, as a snapshot must",
            f"run `grant usage on schema {table.schema} to {user}`",
        )
    if not rights.can_select:
        yield warning(
            subject, f"role {user} may not read it, as a snapshot must", f"run `grant select on {table} to {user}`"
        )
    if rights.rows_hidden:
        yield warning(
            subject,
            f"row security hides rows from {user} in a snapshot, while the stream has them all",
            f"run `alter role {user} bypassrls` as a superuser",
        )


def _columns(table: Table, database: Database) -> Iterator[Finding]:
    subject, columns = f"table {table}", database.columns_of(table)
    stored = [column.name for column in columns if column.generated == "s"]
    virtual = [column.name for column in columns if column.generated == "v"]
    as_text = [f"{column.name} ({column.type_name})" for column in columns if goes_as_text(column.type_oid, database.types)]
    if stored and not database.publishes_generated:
        yield warning(
            subject, f"generated columns are not in the stream: {', '.join(stored)}", _generated_remedy(database.server)
        )
    if virtual:
        yield warning(
            subject, f"virtual columns are never in the stream: {', '.join(virtual)}", "compute them at the target"
        )
    if as_text:
        yield warning(subject, f"of a type that travels as text: {', '.join(as_text)}", "nothing, if text suits the target")


def _generated_remedy(server: Server) -> str:
    if server.major < _GENERATED_PUBLISHED:
        return "compute them at the target, or upgrade to PostgreSQL 18, which can send them"
    return "compute them at the target, or run `alter publication ... set (publish_generated_columns = stored)`"


def goes_as_text(oid: int, types: Types) -> bool:
    """Whether values of a type, or parts of them, are of a base type that an extension brought, which we read as text."""
    type_, _ = types.resolve(oid)
    if type_.element:
        return goes_as_text(type_.element, types)
    if type_.fields:
        return any(goes_as_text(field.oid, types) for field in type_.fields)
    return type_.kind is Kind.BASE and type_.oid not in Types.builtin()
