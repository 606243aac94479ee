"""The replication client by itself: a stream of pgoutput messages, decoded one by one, without capture.

Starts a private PostgreSQL, writes to it, and reads the messages back. Run it with `python examples/raw_stream.py`.
"""

from contextlib import closing

from headwater.embedded import EmbeddedPostgres
from headwater.model import Lsn
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication import ReplicationConnection, ReplicationStream, create_slot, decode
from headwater.postgres.replication.messages import Commit, Message

OPTIONS = {"proto_version": "1", "publication_names": "example", "messages": "true"}


def main() -> None:
    with EmbeddedPostgres() as server:
        with connect_sync(server.url) as connection:
            connection.execute("create table greeting (id int primary key, word text)")
            connection.execute("create publication example for table greeting")
        replication = ReplicationConnection(server.url)
        start = create_slot(replication, "example", temporary=True)
        system = replication.identify()
        print(f"timeline {system.timeline} of database {system.database}")
        # From here on the stream owns the connection.
        with closing(replication.start("example", start, OPTIONS)) as stream:
            write(server.url)
            read_until_told(stream)


def write(url: str) -> None:
    with connect_sync(url) as connection:
        connection.execute("insert into greeting values (1, 'hello'), (2, null)")
        connection.execute("update greeting set word = 'hallo' where id = 1")
        connection.execute("delete from greeting where id = 2")
        connection.execute("select pg_logical_emit_message(true, 'example', 'that is all')")


def read_until_told(stream: ReplicationStream) -> None:
    """Print messages, and confirm each transaction, until the one with the logical message that ends the example."""
    confirmed, told, done = Lsn(0), False, False
    while not done:
        received = stream.read(timeout_seconds=5, max_bytes=1 << 20)
        for data in received.messages:
            message = decode(data)
            print(f"  {message}")
            told = told or isinstance(message, Message)
            if isinstance(message, Commit):
                confirmed, done = message.end_lsn, told
        # The server hangs up on a client that it does not hear from within wal_sender_timeout, so say something each time.
        stream.send_status(confirmed, confirmed)
    print("everything is confirmed")


if __name__ == "__main__":
    main()
