"""Sees to it that masks and hashes reach what they are meant for: no value slips by in the clear under another name."""

from contextlib import closing

from headwater.errors import SettingsError, SourceError
from headwater.postgres.catalog import Table, list_tables
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.cut import Index
from headwater.postgres.replication.messages import Relation
from headwater.spark.sources.lanes import by_relation
from headwater.spark.sources.protect import Protection


class Guard:
    """Looks at each table when it is first described, and again when it is described anew."""

    def __init__(self, url: str, protection: Protection) -> None:
        self._url = url
        self._columns: dict[str, set[str]] = {}
        for name in (*protection.mask, *protection.hash):
            table, _, column = name.rpartition(".")
            self._columns.setdefault(table, set()).add(column)
        self._protected = {oid for oid, table in self._tables().items() if _name(table) in self._columns}
        self._seen: set[Relation] = set()

    def check(self, batch: Batch) -> None:
        """Raise unless every protected column of the tables in a batch is there under its name."""
        # Only of tables that have rows there: a partition whose rows come as its root's is described as well.
        fresh = {relation for relation, _ in by_relation(Index.of(batch))} - self._seen
        if fresh:
            tables = self._tables()
            for relation in fresh:
                self._check(relation, tables)
            self._seen |= fresh

    def _check(self, relation: Relation, tables: dict[int, Table]) -> None:
        wanted = self._columns.get(relation.table)
        if wanted is not None:
            for column in sorted(wanted - {column.name for column in relation.columns}):
                raise SettingsError(
                    f"column {relation.table}.{column} is to be masked or hashed, and the table does not have it; correct "
                    "its name, and start again: nothing of it was delivered"
                )
            return
        if relation.oid in self._protected:
            raise SettingsError(
                f"a table with masked or hashed columns is called {relation.table} now; correct the names, and start again: "
                "nothing was delivered under the new name"
            )
        parents = [
            _name(tables[oid]) for oid in (tables[relation.oid].ancestors if relation.oid in tables else ()) if oid in tables
        ]
        for parent in parents:
            if parent in self._columns:
                raise SourceError(
                    f"changes of {parent}, which has masked or hashed columns, come under the name of its partition "
                    f"{relation.table}; run `alter publication ... set (publish_via_partition_root = true)`, and start again"
                )

    def _tables(self) -> dict[int, Table]:
        with translated(self._url), closing(connect_sync(self._url)) as connection:
            return {table.oid: table for table in list_tables(connection)}


def _name(table: Table) -> str:
    return f"{table.schema}.{table.name}"
