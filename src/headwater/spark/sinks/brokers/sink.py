"""The sink that publishes to a broker: a lane is one task, which sends its messages in order."""

import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.brokers.registry import open_broker
from headwater.creek.names import Names
from headwater.errors import BrokerError, HeadwaterError, SinkError, SinkUnavailable
from headwater.model import Lineage, Messages, Op
from headwater.spark.frame import pack
from headwater.spark.letters import Letter, chunk_of, frame_of, lineage_of, post_letters, prepare_letters
from headwater.spark.settings import BrokerSinkSettings
from headwater.spark.shape import Shape
from headwater.spark.sinks.brokers.letters import is_of_outbox, messages_of
from headwater.spark.sinks.brokers.parts import Parts
from headwater.spark.sinks.brokers.task import OUTCOME, Outcome, PublishTask
from headwater.spark.sinks.nats.parts import Whose
from headwater.spark.sinks.ordered import by_lane, by_table
from headwater.spark.sinks.sink import Span, Written
from headwater.spark.sources.envelope import SCHEMA as ENVELOPE_COLUMNS


class BrokerSink:
    """Messages are durable at the broker before a batch is done; those that it will never take are dead letters.

    They may come more than once, always under the same id: brokers that know ids keep one of them. `keyed` if the messages
    of an outbox keep their order by key alone.
    """

    def __init__(  # noqa: PLR0913 - who delivers, from where, to where
        self,
        settings: BrokerSinkSettings,
        *,
        pipeline: str,
        state_url: str,
        table: tuple[str, str],
        lineage: Lineage | None = None,
        keyed: bool = False,
    ) -> None:
        self._settings, self._state_url, self._table, self._keyed = settings, state_url, table, keyed
        database = "" if lineage is None else lineage.database
        self._whose, self._lineage = Whose(pipeline, settings.name, Names("headwater", database)), lineage

    @property
    def name(self) -> str:
        return self._settings.name

    def open(self) -> None:
        with self._translated(), closing(open_broker(self._settings.access)) as broker:
            broker.check()
        prepare_letters(self._state_url)

    def check(self) -> list[str]:
        """What would fail later, each with its remedy; writes nothing."""
        try:
            with closing(open_broker(self._settings.access)) as broker:
                broker.check()
        except HeadwaterError as exc:
            return [str(exc)]
        return []

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        attempt = "" if span.loading is None else span.loading.attempt
        task = PublishTask(Parts(self._whose, shape, self._table, self._lineage, attempt), self._settings.access)
        outcomes = (pickle.loads(row["outcome"]) for row in self._rows(batch, shape).mapInArrow(task, OUTCOME).collect())
        total = sum(outcomes, Outcome())
        # Also when others failed: what was refused is not asked for again, and a letter is kept once.
        post_letters(self._state_url, total.letters)
        total.require_success(self.name)
        return total.written

    def replay(self, letter: Letter) -> None:
        """Publish the message of a dead letter, under its own id."""
        with self._translated(), closing(open_broker(self._settings.access)) as broker:
            for messages in self._messages(letter):
                for refused in broker.publish(messages).refused:
                    raise SinkError(self.name, f"the message still cannot be published: {refused.reason}")

    def close(self) -> None:
        """The connections are those of Spark's workers."""

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What the broker refuses is said of this sink, and tried again if that may help."""
        try:
            yield
        except BrokerError as exc:
            raise (SinkUnavailable if exc.retryable else SinkError)(self.name, str(exc)) from exc

    def _rows(self, batch: DataFrame, shape: Shape) -> DataFrame:
        match shape:
            case Shape.MESSAGE:
                return by_lane(batch, keyed=self._keyed)
            case Shape.ENVELOPE:
                return by_table(batch)
            case _:
                return batch.select("frame")

    def _messages(self, letter: Letter) -> list[Messages]:
        if is_of_outbox(letter):
            return [messages_of(letter)]
        if letter.envelope is not None:
            row = {**letter.envelope, "committed_at": letter.committed_at}
            shape, rows = Shape.ENVELOPE, pa.RecordBatch.from_pylist([row], ENVELOPE_COLUMNS)
        else:
            packed = pack(chunk_of(letter) if letter.op == Op.READ else frame_of(letter))
            shape, rows = Shape.WIRE, pa.RecordBatch.from_pydict({"frame": pa.array([packed], pa.binary())})
        parts = list(Parts(self._whose, shape, self._table, lineage_of(letter.event_id)).of([rows]))
        for refused in chain.from_iterable(letters for _, letters in parts):
            raise SinkError(self.name, f"the row still cannot be published: {refused.reason}")
        ids = pa.array([letter.event_id], pa.string())
        given = [messages for many, _ in parts for messages, _ in many]
        return [Messages(messages.rows.set_column(0, messages.rows.schema.field(0), ids)) for messages in given]
