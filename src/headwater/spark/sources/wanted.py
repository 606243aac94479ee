"""Which of the tables that come were asked for, when a publication holds more than that."""

from contextlib import closing

from headwater.postgres.catalog import Table, list_tables, parse_pattern
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.batch import Batch, relations_in, tags_of
from headwater.postgres.replication.messages import Relation
from headwater.postgres.replication.pgoutput import parse_relation
from headwater.postgres.replication.publication import Found, find_publication


class Wanted:
    """Judges each table when it first appears, by the catalog of then; a partition is wanted if a parent of it is.

    Only where the publication holds more than was asked for: the catalog may have moved on since a change was written, and
    what a narrow publication sends was asked for, whatever became of its table. If all that it names `is_whole` wanted, it
    is narrow unless it has all tables, or whole schemas.
    """

    def __init__(self, url: str, publication: str, patterns: tuple[str, ...], *, is_whole: bool = False) -> None:
        self._url, self._publication, self.patterns, self._is_whole = url, publication, patterns, is_whole
        self._patterns = [parse_pattern(pattern) for pattern in patterns]
        self._judged: dict[bytes, bool] = {}

    def dropped(self, batch: Batch) -> frozenset[int]:
        """The oids of the tables in a batch that nobody asked for."""
        sent = relations_in(batch.data, batch.bounds, tags_of(batch.data, batch.bounds), batch.xid_bytes)
        described = {**batch.relations, **sent}
        unknown = [message for message in described.values() if message not in self._judged]
        if unknown:
            # Each time, for a publication may be widened while it is read.
            with translated(self._url), closing(connect_sync(self._url)) as connection:
                published, tables = find_publication(connection, self._publication), list_tables(connection)
            is_narrow = not self._holds_more(published, tables)
            by_oid = {table.oid: table for table in tables}
            named = frozenset(published.tables if published is not None and self._is_whole else ())
            self._judged.update(
                (message, is_narrow or self._judge(parse_relation(message), by_oid, named)) for message in unknown
            )
        return frozenset(oid for oid, message in described.items() if not self._judged[message])

    def _judge(self, relation: Relation, tables: dict[int, Table], named: frozenset[int]) -> bool:
        if relation.oid not in tables:
            # Gone by now; what it did while it was there is wanted all the same if the name is.
            return any(
                pattern.name.fullmatch(relation.name)
                and (pattern.schema is None or pattern.schema.fullmatch(relation.schema))
                for pattern in self._patterns
            )
        family = [tables[oid] for oid in (relation.oid, *tables[relation.oid].ancestors) if oid in tables]
        return any(table.oid in named or self._matches(table) for table in family)

    def _holds_more(self, published: Found | None, tables: list[Table]) -> bool:
        if published is None or published.all_tables or published.schemas:
            return True
        return not self._is_whole and any(table.oid in published.tables and not self._matches(table) for table in tables)

    def _matches(self, table: Table) -> bool:
        return any(pattern.matches(table) for pattern in self._patterns)
