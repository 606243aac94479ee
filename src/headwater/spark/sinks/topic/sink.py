"""The sink that appends changes of tables to a topic, each exactly once."""

from contextlib import closing
from datetime import timedelta

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.creek.names import Names
from headwater.errors import HeadwaterError, SinkError, TopicError
from headwater.model import Lineage, Op
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.statements import execute_sync
from headwater.spark.letters import Letter, chunk_of, frame_of, lineage_of, prepare_letters
from headwater.spark.shape import Shape
from headwater.spark.sink_settings import TopicSinkSettings
from headwater.spark.sinks.nats.parts import JsonParts, Part, Whose
from headwater.spark.sinks.ordered import by_table
from headwater.spark.sinks.postgres.positions import take_over
from headwater.spark.sinks.postgres.session import Address, Session, patiently
from headwater.spark.sinks.postgres.task import OUTCOME, total
from headwater.spark.sinks.sink import Span, Written
from headwater.spark.sinks.topic.messages import frames_of, outgoing
from headwater.spark.sinks.topic.statements import forget_other_pieces
from headwater.spark.sinks.topic.task import AppendTask, append_in_order
from headwater.spark.sinks.topic.work import Works
from headwater.spark.sources.envelope import SCHEMA as ENVELOPE_COLUMNS
from headwater.topics import find_sync, require_topics

# About as long as a server takes to restart, or a standby to be promoted.
_PATIENCE = timedelta(seconds=30)


class TopicSink:
    """Changes are messages of the topic when a batch is done; those that it will never take are dead letters.

    What is appended and how far that is are in one transaction, so that what comes again is left out. The rows of a
    DataFrame `changes` do not say what their positions belong to: `lineage` does. `patience` is how long a server that is
    away is waited for before SinkUnavailable is raised.
    """

    def __init__(
        self,
        settings: TopicSinkSettings,
        *,
        pipeline: str,
        state_url: str,
        lineage: Lineage | None = None,
        patience: timedelta = _PATIENCE,
    ) -> None:
        self._settings = settings
        self._address = Address(pipeline, settings.name, settings.url, state_url, patience)
        self._lineage, self._session = lineage, Session(settings.url)
        self._whose = Whose(pipeline, settings.name, Names("headwater", "" if lineage is None else lineage.database))
        self._epoch = 0
        # The attempt at loading tables that this run has seen last.
        self._attempt: str | None = None

    @property
    def name(self) -> str:
        return self._settings.name

    def check(self) -> list[str]:
        """What would fail later, each with its remedy; writes nothing."""
        url = self._settings.url
        try:
            with translated(url), closing(connect_sync(url)) as connection:
                require_topics(connection)
                find_sync(connection, self._settings.topic)
        except HeadwaterError as exc:
            return [str(exc)]
        return []

    def open(self) -> None:
        for problem in self.check():
            raise SinkError(self.name, problem)
        prepare_letters(self._address.state_url)

        def prepare() -> int:
            connection = self._session.connection
            migrate(connection, Component.of("headwater.spark.sinks.postgres"))
            with connection.transaction():
                return take_over(connection, self._address)

        self._epoch, self._attempt = patiently(self._address, self._session, prepare), None

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        if self._lineage is None:
            raise SinkError(self.name, "nobody has said whose changes these are; give it the lineage of the source")
        loading = span.loading
        if loading is not None and loading.attempt != self._attempt:
            forget = forget_other_pieces(self._address.pipeline, self.name, loading.attempt)
            patiently(self._address, self._session, lambda: execute_sync(self._session.connection, forget))
            self._attempt = loading.attempt
        works = Works(self._whose, shape, self._lineage, loading)
        task = AppendTask(self._address, self._settings.topic, self._epoch, works)
        rows = by_table(batch) if shape is Shape.ENVELOPE else batch
        written, _ = total(self.name, rows.mapInArrow(task, OUTCOME).collect())
        return written or Written()

    def replay(self, letter: Letter) -> None:
        """Append the message of a dead letter, behind what came later."""
        part = self._part(letter)

        def append() -> None:
            connection = self._session.connection
            try:
                with connection.transaction():
                    topic = find_sync(connection, self._settings.topic)
                    given = outgoing(part, np.ones(len(part.messages), np.bool_), topic)
                    for refused in given.letters:
                        raise SinkError(self.name, f"the message still cannot be appended: {refused.reason}")
                    append_in_order(connection, topic, frames_of([given], topic))
            except TopicError as exc:
                raise SinkError(self.name, str(exc)) from exc

        patiently(self._address, self._session, append)

    def close(self) -> None:
        self._session.close()

    def _part(self, letter: Letter) -> Part:
        """The message of a letter."""
        whose = JsonParts(self._whose)
        if letter.envelope is not None:
            row = {**letter.envelope, "committed_at": letter.committed_at}
            rows = pa.RecordBatch.from_pylist([row], ENVELOPE_COLUMNS)
            parts, letters = whose.of_envelopes(rows, lineage_of(letter.event_id), "")
        else:
            parts, letters = whose.of(chunk_of(letter) if letter.op == Op.READ else frame_of(letter))
        for refused in letters:
            raise SinkError(self.name, f"the row still cannot be appended: {refused.reason}")
        return parts[0]
