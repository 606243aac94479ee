"""Changes by the column: batches decoded straight into Arrow, one table for each kind of change.

Starts a private PostgreSQL, writes to it, and reads the changes back. Run it with `python examples/columns_to_arrow.py`.
"""

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from headwater.capture import Capture, CaptureSettings, CatalogTypes, emit_mark
from headwater.embedded import EmbeddedPostgres
from headwater.model import Lsn
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication import (
    Group,
    Publication,
    ReplicationConnection,
    create_slot,
    decode_columns,
    reconcile,
)

NAME = "headwater_example"


def main() -> None:
    with EmbeddedPostgres() as server:
        prepare(server.url)
        until = write(server.url)
        found: defaultdict[str, list[pa.RecordBatch]] = defaultdict(list)
        for group in groups(server.url, until):
            rows = group.after if group.after is not None else group.before
            found[f"{group.relation.name} {group.tag}"].append(with_places(rows, group))
        for kind, batches in found.items():
            report(kind, pa.Table.from_batches(batches))


def prepare(url: str) -> None:
    with connect_sync(url) as connection:
        connection.execute(
            "create table reading (id bigint primary key, sensor text, value numeric(8, 3), taken_at timestamptz)"
        )
        reconcile(connection, Publication(name=NAME, tables=("reading",)))
    with ReplicationConnection(url) as replication:
        create_slot(replication, NAME)


def write(url: str) -> Lsn:
    """50,000 inserts, 1,000 updates and 500 deletes; returns a position that lies behind them all."""
    with connect_sync(url) as connection:
        connection.execute(
            "insert into reading select n, 'sensor ' || n % 10, n / 1000.0, timestamptz '2026-01-01' + n * interval '1 s' "
            "from generate_series(1, 50000) n"
        )
        connection.execute("update reading set value = -1 where id <= 1000")
        connection.execute("delete from reading where id > 49500")
        return emit_mark(connection)


def groups(url: str, until: Lsn) -> Iterator[Group]:
    """The changes that committed before `until`, each batch split by table and operation."""
    types = CatalogTypes(url)
    with Capture(CaptureSettings(url=url, slot=NAME, publications=(NAME,))) as capture:
        for batch in capture:
            yield from decode_columns(batch, types.of(batch))
            if batch.end is not None:
                capture.confirm(batch.end)
                if batch.end >= until:
                    return


def with_places(rows: pa.RecordBatch, group: Group) -> pa.RecordBatch:
    """The rows with their positions, so that rows of different groups can be put back into order."""
    # A value that its Arrow type cannot hold is NULL in the array and listed here; never pass it on unseen.
    if group.rejected:
        raise ValueError(f"{len(group.rejected)} values do not fit, the first is {group.rejected[0]}")
    places = {"_commit_lsn": group.places.commit_lsn, "_ordinal": group.places.ordinal}
    columns = {**dict(zip(rows.schema.names, rows.columns, strict=True)), **places}
    return pa.RecordBatch.from_pydict(columns)


def report(kind: str, table: pa.Table) -> None:
    print(f"{kind}: {table.num_rows:,} rows, {', '.join(f'{field.name} {field.type}' for field in table.schema)}")
    if "value" in table.schema.names:
        print(f"  the values add up to {pc.sum(table['value']).as_py():,}")


if __name__ == "__main__":
    main()
