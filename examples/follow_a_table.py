"""Follow a table: its changes in commit order, as Python values, confirmed once they are dealt with.

Starts a private PostgreSQL, writes to it, and reads the changes back. Run it with `python examples/follow_a_table.py`.
"""

from headwater.capture import Capture, CaptureSettings, CatalogTypes, emit_mark
from headwater.embedded import EmbeddedPostgres
from headwater.model import Change, Lsn
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication import Publication, ReplicationConnection, create_slot, decode_rows, reconcile

NAME = "headwater_example"


def main() -> None:
    with EmbeddedPostgres() as server:
        prepare(server.url)
        until = write(
            server.url,
            "insert into parcel values (1, 'a book', 1.25, repeat('x', 5000)), (2, 'a lamp', 3.10, null)",
            "update parcel set weight = 1.30 where id = 1",
            "update parcel set id = 20 where id = 2",
            "delete from parcel where id = 1",
        )
        print("the first reader:")
        follow(server.url, until)
        until = write(server.url, "truncate parcel")
        print("a second one, from the same slot, gets only what the first did not confirm:")
        follow(server.url, until)


def prepare(url: str) -> None:
    """A table, then a publication, then a slot: the stream has only what was written while its table was published."""
    with connect_sync(url) as connection:
        connection.execute("create table parcel (id int primary key, name text, weight numeric(6, 2), photo text)")
        # Large values of this column are stored apart, and an update that leaves them alone does not send them again.
        connection.execute("alter table parcel alter photo set storage external")
        reconcile(connection, Publication(name=NAME, tables=("parcel",)))
    with ReplicationConnection(url) as replication:
        create_slot(replication, NAME)


def write(url: str, *statements: str) -> Lsn:
    """Run each statement in a transaction of its own, and return a position that lies behind them all."""
    with connect_sync(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        return emit_mark(connection)


def follow(url: str, until: Lsn) -> None:
    """Print changes, and confirm them, until all that committed before `until` have come."""
    types = CatalogTypes(url)
    with Capture(CaptureSettings(url=url, slot=NAME, publications=(NAME,))) as capture:
        for batch in capture:
            for change in decode_rows(batch, types.of(batch)):
                if isinstance(change, Change):
                    print(f"  {change.op:5} {change.table} {change.key} -> {shown(change)}")
            # No end: the transaction goes on in the next batch, and can only be confirmed whole.
            if batch.end is not None:
                capture.confirm(batch.end)
                if batch.end >= until:
                    return


def shown(change: Change) -> str:
    """The new row; a column that the server did not send shows as UNCHANGED."""
    if change.after is None:
        return "gone"
    return ", ".join(f"{name}={str(value)[:12]}" for name, value in change.after.items())


if __name__ == "__main__":
    main()
