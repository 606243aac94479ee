"""An outbox for stories: writers with an account of what they committed, a relay of it, and what arrived in which order."""

import json
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self

import pika
import psycopg
from pyspark.sql import SparkSession

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.brokers.registry import BrokerAccess
from headwater.errors import HeadwaterError
from headwater.outbox import Event as OutboxEvent
from headwater.outbox import publish_many_sync
from headwater.outbox.checkpoint import Checkpoint, find_checkpoints
from headwater.outbox.ids import make_ids
from headwater.postgres.connect import connect_sync
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import BrokerSinkSettings, OutboxSettings, PipelineSettings
from headwater.spark.sinks import Sink
from headwater.spark.sinks.build import build_sinks
from headwater.spark.state import Phase
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.waiting import eventually

NAME = "events"
# How many keys each writer has; no two writers share one, so that the order within a key is no accident.
_KEYS = 5
# Most transactions are small: 8 messages on average.
_SIZES = (*[1] * 12, 2, 2, 3, 3, 5, 10, 30, 100)
# Some 300 messages in a second of four writers: what a busy machine can still follow.
_PAUSE_SECONDS = 0.1
# More than any story waits for while nothing arrives; more would only be more to deliver afterwards.
_MOST_AHEAD = 1000

Write = Callable[[psycopg.Connection[Any], str, Sequence["Message"]], None]


@dataclass(frozen=True)
class Message:
    """A message by its id, and its place among those of its key."""

    id: str
    key: str
    number: int

    @property
    def payload(self) -> dict[str, object]:
        return {"key": self.key, "number": self.number}


def publish_messages(connection: psycopg.Connection[Any], topic: str, messages: Sequence[Message]) -> None:
    """By the product's own function, into its own table."""
    events = [OutboxEvent(topic, "Counted", each.payload, each.key, id=uuid.UUID(each.id)) for each in messages]
    publish_many_sync(connection, events)


class Producer:
    """Writers of transactions of 1 to 100 messages, of which some are rolled back, as a whole or to a savepoint.

    `committed` has the messages whose commit was acknowledged; `undone` those that were never committed.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        writers: int = 4,
        first: int = 0,
        write: Write = publish_messages,
        is_fast: bool = False,
        paced_by: "Queue | None" = None,
        seed: int = 0,
    ) -> None:
        """The number of the `first` writer is part of the keys. With `is_fast` they make no pauses.

        What they write follows from the `seed`; when, they and the machine decide.
        `paced_by` a queue, they wait when it does not follow.
        """
        self._pause = 0 if is_fast else _PAUSE_SECONDS
        self._url, self._topic, self._write, self._paced_by = url, topic, write, paced_by
        self._lock, self._stop = Lock(), Event()
        self._committed: list[Message] = []
        self._undone: list[Message] = []
        self._errors: list[BaseException] = []
        numbers = range(first, first + writers)
        self._threads = [Thread(target=self._run, args=[number, random.Random(f"{seed} {number}")]) for number in numbers]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors, self._errors

    @property
    def committed(self) -> list[Message]:
        with self._lock:
            return list(self._committed)

    @property
    def undone(self) -> list[Message]:
        with self._lock:
            return list(self._undone)

    def wait_for_more(self, messages: int, *, seconds: float = 600) -> None:
        wanted = len(self.committed) + messages
        eventually(lambda: self._errors or len(self.committed) >= wanted, seconds=seconds)

    def _run(self, writer: int, choose: random.Random) -> None:
        numbers: dict[str, int] = defaultdict(int)

        def make(count: int) -> list[Message]:
            made = []
            # In rising order, as the product makes them: rows of one microsecond are told apart by their ids.
            for id in make_ids(count):
                key = f"{writer}-{choose.randrange(_KEYS)}"
                numbers[key] += 1
                made.append(Message(str(id), key, numbers[key]))
            return made

        try:
            with closing(psycopg.connect(self._url)) as connection:
                while not self._stop.wait(self._pause):
                    if not self._is_far_ahead():
                        self._transaction(connection, make, choose)
        except psycopg.Error as exc:
            self._errors.append(exc)

    @contextmanager
    def unpaced(self) -> Iterator[None]:
        """Within it, writers go on however much has not arrived, as while the broker is away."""
        paced_by, self._paced_by = self._paced_by, None
        try:
            yield
        finally:
            self._paced_by = paced_by

    def _is_far_ahead(self) -> bool:
        queue = self._paced_by
        return queue is not None and len(self._committed) - queue.arrivals > _MOST_AHEAD

    def _transaction(
        self, connection: psycopg.Connection[Any], make: Callable[[int], list[Message]], choose: random.Random
    ) -> None:
        kept, undone = make(choose.choice(_SIZES)), list[Message]()
        with connection.transaction():
            self._write(connection, self._topic, kept)
            if choose.random() < 0.2:
                more, is_undone = make(2), choose.random() < 0.5
                with connection.transaction(force_rollback=is_undone):
                    self._write(connection, self._topic, more)
                (undone if is_undone else kept).extend(more)
            is_undone = choose.random() < 0.1
            if is_undone:
                raise psycopg.Rollback
        with self._lock:
            self._committed += [] if is_undone else kept
            self._undone += [*undone, *(kept if is_undone else [])]


@contextmanager
def held_open(url: str, topic: str, messages: Sequence[Message], write: Write = publish_messages) -> Iterator[None]:
    """A transaction that has written, and commits at the end of the block."""
    with closing(psycopg.connect(url)) as connection, connection.transaction():
        write(connection, topic, messages)
        yield


def messages_of(key: str, count: int) -> list[Message]:
    """Messages of one key that nobody else writes."""
    return [Message(str(id), key, number) for number, id in enumerate(make_ids(count), 1)]


class Queue:
    """A queue of RabbitMQ, which keeps repeats, and a consumer that takes everything out of it in order.

    It begins at once, or when it is told to if the queue has `arguments`.
    """

    def __init__(self, node: RabbitmqNode, **arguments: object) -> None:
        self._node, self.name = node, f"events-{uuid.uuid4().hex[:12]}"
        self._open = Event()
        self._arguments = {name.replace("_", "-"): value for name, value in arguments.items()}
        self._arrived: list[Message] = []
        self._stop = Event()
        self._thread = Thread(target=self._consume)

    def __enter__(self) -> Self:
        with self._node.channel() as channel:
            channel.queue_declare(self.name, durable=True, arguments=self._arguments)
        self._thread.start()
        if not self._arguments:
            self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self.open()
        self._thread.join()
        with self._node.channel() as channel:
            channel.queue_delete(self.name)

    def open(self) -> None:
        """Have the consumer begin."""
        self._open.set()

    @property
    def arrived(self) -> list[Message]:
        return list(self._arrived)

    @property
    def arrivals(self) -> int:
        """How many have arrived, repeats among them."""
        return len(self._arrived)

    @property
    def waiting(self) -> int:
        """How many messages nobody has taken yet."""
        with self._node.channel() as channel:
            return int(channel.queue_declare(self.name, passive=True).method.message_count)

    def wait_for(self, wanted: Sequence[Message], alive: Callable[[], object] = lambda: None, seconds: float = 120) -> None:
        """Until all of them have arrived; what has not by then is for the tally to tell."""
        missing, seen = {each.id for each in wanted}, 0
        deadline = time.monotonic() + seconds

        def look() -> bool:
            nonlocal seen
            alive()
            arrived = self._arrived[seen:]
            seen += len(arrived)
            missing.difference_update(each.id for each in arrived)
            return not missing or time.monotonic() > deadline

        eventually(look, seconds=2 * seconds)

    def wait_for_more(self, messages: int, seconds: float = 240) -> None:
        wanted = len(self._arrived) + messages
        eventually(lambda: len(self._arrived) >= wanted, seconds=seconds)

    def _consume(self) -> None:
        self._open.wait()
        with closing(pika.BlockingConnection(pika.URLParameters(self._node.url))) as connection:
            for _, properties, body in connection.channel().consume(self.name, auto_ack=True, inactivity_timeout=0.05):
                if properties is not None:
                    self._arrived.append(read_message(properties.message_id, body))
                elif self._stop.is_set():
                    return


def read_message(id: str, body: bytes) -> Message:
    content = json.loads(body)
    return Message(id, content["key"], content["number"])


@dataclass(frozen=True)
class Tally:
    """What became of messages that were committed; `ghosts` are those that never were.

    `disordered` counts within a key, by when messages came first, and `unsettled` by when they came last: a broker that has
    taken messages behind one that it refused is sent all of them again from there on.
    """

    committed: int
    arrived: int
    lost: int
    repeated: int
    disordered: int
    ghosts: int
    unsettled: int = 0

    def __str__(self) -> str:
        return (
            f"committed {self.committed}, arrived {self.arrived}, lost {self.lost}, repeated {self.repeated}, "
            f"out of order in a key {self.disordered} ({self.unsettled} at last), never committed {self.ghosts}"
        )

    def require_all(self) -> None:
        assert (self.lost, self.disordered, self.ghosts) == (0, 0, 0), str(self)


def tally(committed: Sequence[Message], arrived: Sequence[Message]) -> Tally:
    """Compare what was committed with what has arrived."""
    wanted, first, last = {each.id for each in committed}, firsts(arrived), firsts(arrived[::-1])[::-1]
    came = {each.id for each in first}
    return Tally(
        committed=len(wanted),
        arrived=len(arrived),
        lost=len(wanted - came),
        repeated=len(arrived) - len(first),
        disordered=_steps_back(first),
        ghosts=len(came - wanted),
        unsettled=_steps_back(last),
    )


def firsts(arrived: Sequence[Message]) -> list[Message]:
    """Each message where it came for the first time."""
    return list({each.id: each for each in arrived}.values())


def _steps_back(messages: Sequence[Message]) -> int:
    """How many come behind a later one of their key."""
    found, last = 0, defaultdict[str, int](int)
    for each in messages:
        found += each.number < last[each.key]
        last[each.key] = max(last[each.key], each.number)
    return found


class Witness:
    """A slot of our own at the outbox, decoded by hand: it tells the order in which messages were committed."""

    def __init__(self, url: str) -> None:
        self._url = url
        with closing(connect_sync(url)) as connection:
            connection.execute(
                "create publication witness for table headwater.outbox_message "
                "with (publish = 'insert', publish_via_partition_root)"
            )
            connection.execute("select pg_create_logical_replication_slot('witness', 'pgoutput')")

    def order(self) -> list[str]:
        """The ids of all messages that were committed so far; they are the first column."""
        with closing(connect_sync(self._url)) as connection:
            found = connection.execute(
                "select data from pg_logical_slot_peek_binary_changes("
                "'witness', null, null, 'proto_version', '1', 'publication_names', 'witness')"
            ).fetchall()
        # An insert is I, the relation, N, the number of columns; then t, a length, and the text of the first of them.
        return [bytes(data)[13:49].decode() for (data,) in found if bytes(data)[:1] == b"I"]


def written_order(url: str) -> list[str]:
    """The ids of all messages in the order that recovery reads them in."""
    with closing(connect_sync(url)) as connection:
        found = connection.execute("select id::text from headwater.outbox_message order by created_at, id").fetchall()
    return [id for (id,) in found]


def inversions(order: Sequence[str], ids: Sequence[str]) -> int:
    """How often one comes behind another one that it should be in front of."""
    places = {id: place for place, id in enumerate(order)}
    found, last = 0, -1
    for id in ids:
        found += places[id] < last
        last = max(last, places[id])
    return found


def relay_settings(directory: Path, url: str, access: BrokerAccess, **source: Any) -> PipelineSettings:
    """A pipeline from the outbox to a broker; `source` are settings of the outbox."""
    given = {"slot": NAME, "publication": NAME, "checkpoint_interval": timedelta(seconds=1), **source}
    return PipelineSettings(
        name=NAME,
        source=OutboxSettings(url=url, **given),
        sinks=(BrokerSinkSettings(name="broker", access=access),),
        checkpoint=str(directory / "checkpoint"),
        state_url=url,
    )


def queue_access(url: str, queue: Queue, **more: Any) -> RabbitmqAccess:
    """Everything goes to one queue, whatever its topic."""
    return RabbitmqAccess(**{"url": url, "routing_key": queue.name, "timeout": timedelta(seconds=10), **more})


class Relay:
    """A pipeline that runs in a thread; its own end is a failure."""

    def __init__(self, spark: SparkSession, settings: PipelineSettings, sinks: Sequence[Sink] | None = None) -> None:
        self._stopping, self._errors = Event(), list[HeadwaterError]()
        self._pipeline = Pipeline(spark, settings, sinks or build_sinks(settings), self._stopping)
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert not self._errors, self._errors

    def require_life(self) -> None:
        assert self._thread.is_alive(), self._errors

    def is_retrying(self) -> bool:
        """Whether it has told that a server or the broker is away, and waits before it tries again."""
        return self._pipeline.report.phase is Phase.RETRYING

    def error(self) -> HeadwaterError:
        """What it ends with by itself."""
        self._thread.join(90)
        return self._errors.pop()

    def _run(self) -> None:
        try:
            self._pipeline.run()
        except HeadwaterError as exc:
            self._errors.append(exc)


def relay_once(spark: SparkSession, settings: PipelineSettings) -> None:
    """Deliver what has committed by now."""
    Pipeline(spark, settings, build_sinks(settings), Event()).run(once=True)


def write_relay_file(directory: Path, checkpoint: Path, source: Mapping[str, object], sink: Mapping[str, object]) -> None:
    """The file of a pipeline from an outbox to a broker, for `headwater run`; `checkpoint` is Spark's."""
    spark = {"master": "local[2]"}
    # JSON texts, numbers and truths are TOML, too.
    parts = {"[source]": {"type": "outbox", **source}, "[[sinks]]": sink, "[spark]": spark}
    lines = [f"name = {json.dumps(NAME)}", f"checkpoint = {json.dumps(str(checkpoint))}"]
    for header, values in parts.items():
        lines += [header, *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items())]
    (directory / "headwater.toml").write_text("\n".join(lines))


def find_checkpoint(url: str) -> Checkpoint | None:
    """That of the pipeline, if there is one yet."""
    try:
        with closing(connect_sync(url)) as connection:
            return next(iter(find_checkpoints(connection, NAME)), None)
    except psycopg.errors.UndefinedTable:
        return None


def is_streaming(url: str, generation: str | None = None) -> bool:
    """Whether the table is read, for another slot than that of `generation` if one is given."""
    found = find_checkpoint(url)
    return found is not None and found.phase == "streaming" and found.generation != generation


def generation_of(url: str) -> str:
    """Which slot the checkpoint is about."""
    found = find_checkpoint(url)
    assert found is not None
    return found.generation


def lose_slot(url: str) -> None:
    """Drop the slot of a pipeline that runs, and wait until it has read the table for another one."""
    lost = generation_of(url)
    drop_slot(url)
    eventually(lambda: is_streaming(url, lost), seconds=240)


def drop_slot(url: str) -> None:
    """As somebody would who wants it gone while it is read."""
    with closing(connect_sync(url)) as connection:

        def dropped() -> bool:
            connection.execute(
                "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots "
                "where slot_name = %s and active_pid is not null",
                [NAME],
            )
            try:
                connection.execute("select pg_drop_replication_slot(%s)", [NAME])
            except psycopg.errors.ObjectInUse:
                # Its reader was quick to come back.
                return False
            return True

        eventually(dropped)


@dataclass(frozen=True)
class Sections:
    """Messages in the order of their arrival: streamed before a slot was lost, read from the table, streamed after it."""

    before: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, url: str, arrived: Sequence[Message]) -> Self:
        """By what the checkpoint says of the last recovery."""
        with closing(connect_sync(url)) as connection:
            later = connection.execute(
                "select message.id::text from headwater.outbox_message as message, headwater.outbox_checkpoint "
                "where pipeline = %s and not pg_visible_in_snapshot(message.xid, recovery_snapshot)",
                [NAME],
            ).fetchall()
            ((count,),) = connection.execute(
                "select recovered from headwater.outbox_checkpoint where pipeline = %s", [NAME]
            ).fetchall()
        behind = {id for (id,) in later}
        ids = [each.id for each in firsts(arrived)]
        early, after = [id for id in ids if id not in behind], [id for id in ids if id in behind]
        return cls(early[: len(early) - count], early[len(early) - count :], after)

    def disordered(self, commits: Sequence[str], writes: Sequence[str], *, is_first_read: bool = False) -> int:
        """Count by the order of commits in what was streamed, and by that of writing in what was read from the table.

        With `is_first_read`, messages before the loss were read from the table as well.
        """
        before = inversions(writes if is_first_read else commits, self.before)
        return before + inversions(writes, self.recovered) + inversions(commits, self.after)
