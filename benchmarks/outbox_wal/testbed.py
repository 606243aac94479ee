"""What the parts share: the servers, an outbox that four writers fill, streams, and what these have stored.

Whatever is counted is what a stream says that it holds. Times of messages are those at which the server stored them; it is
on this machine, and has its clock.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Final

from benchmarks.outbox_wal import statements
from benchmarks.polling import wait_until
from benchmarks.report import Output
from headwater.brokers.nats import Link, NatsAccess, ensure_stream
from headwater.brokers.nats.broker import NatsBrokerSettings
from headwater.brokers.nats.streams import call, parse_time
from headwater.brokers.registry import NatsMessages
from headwater.embedded import EmbeddedNats, EmbeddedPostgres, NatsSettings, PostgresSettings
from headwater.outbox.checkpoint import prepare_outbox
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync

TOPIC: Final = "orders"
WRITERS: Final = 4
# Checkpoints and vacuums are kept out of the way, so that they do not fall into one arm and not the other. What is measured
# is how the WAL is read, and not how it is written.
SERVER: Final[Mapping[str, str]] = {
    "fsync": "off",
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
    "autovacuum": "off",
}
# Room for all turns of a part.
_NATS: Final = NatsSettings(max_file_bytes=16 * 1024**3)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a stream or queue holds, and when the first and the last of it were stored, in seconds of Unix time."""

    messages: int
    first: float
    last: float

    @property
    def per_second(self) -> float:
        """From the first message to the last one."""
        return (self.messages - 1) / (self.last - self.first)


@dataclass(frozen=True, slots=True)
class Target:
    """A stream that has what goes to one prefix of subjects."""

    access: NatsAccess
    stream: str

    @property
    def prefix(self) -> str:
        return self.stream.lower()

    @property
    def subject(self) -> str:
        return f"{self.prefix}.{TOPIC}"

    @property
    def messages(self) -> NatsMessages:
        """As the settings of a sink."""
        return NatsMessages(access=self.access, settings=NatsBrokerSettings(subject=f"{self.prefix}.{{topic}}"))

    def stored(self) -> Stored:
        with closing(Link(self.access)) as link:
            return stored_in(link, self.stream)

    def require(self, wanted: int) -> Stored:
        """Raises unless the stream has so many messages."""
        found = self.stored()
        assert found.messages == wanted, f"the stream has {found.messages} of {wanted} messages"
        return found


@dataclass(frozen=True, slots=True)
class Testbed:
    """A database with an outbox, empty at first, and a NATS server; each turn has a stream that was not used before."""

    url: str
    connection: Connection
    access: NatsAccess
    output: Output
    turns: "count[int]" = field(default_factory=lambda: count(1))
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    @contextmanager
    def target(self) -> Iterator[Target]:
        """A stream, made before the clock begins, and gone at the end."""
        # Names of one length, so that messages are.
        target = Target(self.access, f"TURN{next(self.turns):04}")
        with closing(Link(self.access)) as link:
            ensure_stream(link, target.stream, [f"{target.prefix}.>"], "a benchmark's")
        yield target
        with closing(Link(self.access)) as link:
            call(link, f"STREAM.DELETE.{target.stream}", {})

    def write(self, events: int, per_transaction: int) -> None:
        """New events, by all writers at the same time."""
        with self.output.console.status(f"writing {events:,} events in transactions of {per_transaction}"):
            write_messages(self.url, events, per_transaction)

    def empty(self) -> None:
        """Make room; what was in the outbox is delivered."""
        execute_sync(self.connection, statements.empty_outbox())


@contextmanager
def start_testbed(output: Output, config: Mapping[str, str] = SERVER) -> Iterator[Testbed]:
    """The servers, with the outbox made."""
    with (
        EmbeddedPostgres(PostgresSettings(config=config)) as server,
        EmbeddedNats(_NATS) as nats,
        connect_sync(server.url) as connection,
    ):
        prepare_outbox(server.url)
        execute_sync(connection, statements.create_writer())
        yield Testbed(server.url, connection, NatsAccess(url=nats.url), output)


def stored_in(link: Link, stream: str) -> Stored:
    """What a stream has; it is one that is kept in files."""
    answer = call(link, f"STREAM.INFO.{stream}", {})
    state = answer["state"]
    assert answer["config"]["storage"] == "file", "the stream is not kept in files"
    return Stored(state["messages"], parse_time(state["first_ts"]).timestamp(), parse_time(state["last_ts"]).timestamp())


def write_messages(url: str, events: int, per_transaction: int) -> None:
    def write(share: tuple[int, int]) -> None:
        with closing(connect_sync(url)) as connection:
            execute_sync(connection, statements.write_messages(*share, per_transaction))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, shares(events, per_transaction, WRITERS)))


def shares(events: int, per_transaction: int, writers: int) -> list[tuple[int, int]]:
    """The first and the last event of each writer, who all write whole transactions; the last has what is left."""
    transactions = -(-events // per_transaction)
    bounds = [min(events, transactions * writer // writers * per_transaction) for writer in range(writers)] + [events]
    return [(first + 1, last) for first, last in pairwise(bounds) if last > first]


@contextmanager
def slot(testbed: Testbed, name: str) -> Iterator[str]:
    """A slot that stands where the WAL is now, and is dropped at the end."""
    fetch_sync(testbed.connection, statements.create_slot(name))
    yield name
    drop_slot(testbed.connection, name)


def drop_slot(connection: Connection, name: str) -> None:
    """Drop a slot once its last reader has let go of it."""
    wait_until(lambda: bool(fetch_sync(connection, statements.drop_slot(name))), f"slot {name} to be left", 60)
