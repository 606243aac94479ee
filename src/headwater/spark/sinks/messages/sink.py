"""The sink that writes messages of a topic to a table, each exactly once."""

from contextlib import closing
from datetime import timedelta

import psycopg
from pyspark.sql import DataFrame

from headwater.errors import HeadwaterError, SinkError
from headwater.model import Lineage
from headwater.postgres.connect import connect_sync, translate, translated
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.shape import MESSAGES, Shape
from headwater.spark.sink_settings import MessageTableSettings
from headwater.spark.sinks.messages.statements import create_table, has_table, try_table
from headwater.spark.sinks.messages.task import InsertTask
from headwater.spark.sinks.postgres.positions import take_over
from headwater.spark.sinks.postgres.session import Address, Session, patiently
from headwater.spark.sinks.postgres.task import OUTCOME, total
from headwater.spark.sinks.sink import Span, Written

# About as long as a server takes to restart, or a standby to be promoted.
_PATIENCE = timedelta(seconds=30)


class MessageTableSink:
    """Messages are rows of the table when a batch is done. `lineage` is that of the server that has the topic.

    `patience` is how long a server that is away is waited for before SinkUnavailable is raised.
    """

    def __init__(  # noqa: PLR0913 - who delivers, from where, to where
        self,
        settings: MessageTableSettings,
        *,
        pipeline: str,
        state_url: str,
        topic: str,
        lineage: Lineage | None = None,
        patience: timedelta = _PATIENCE,
    ) -> None:
        self._settings, self._topic, self._lineage = settings, topic, lineage
        self._address = Address(pipeline, settings.name, settings.url, state_url, patience)
        self._session = Session(settings.url)
        self._epoch = 0

    @property
    def name(self) -> str:
        return self._settings.name

    def check(self) -> list[str]:
        """What would fail later, each with its remedy; writes nothing."""
        url, table = self._settings.url, self._settings.table
        try:
            with translated(url), closing(connect_sync(url)) as connection:
                if fetch_sync(connection, has_table(table)) == [True]:
                    execute_sync(connection, try_table(table))
                elif not self._settings.create_tables:
                    return [f"table {table} is missing; make it, or set create_tables to true"]
        except HeadwaterError as exc:
            return [str(exc)]
        except psycopg.OperationalError as exc:
            return [str(translate(exc, url))]
        except psycopg.Error as exc:
            return [f"table {table} cannot take messages: {exc.diag.message_primary}; correct it, or name another table"]
        return []

    def open(self) -> None:
        for problem in self.check():
            raise SinkError(self.name, problem)

        def prepare() -> int:
            connection = self._session.connection
            migrate(connection, Component.of("headwater.spark.sinks.postgres"))
            with connection.transaction():
                if self._settings.create_tables:
                    execute_sync(connection, create_table(self._settings.table))
                return take_over(connection, self._address)

        self._epoch = patiently(self._address, self._session, prepare)

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        if self._lineage is None:
            raise SinkError(self.name, "nobody has said whose messages these are; give it the lineage of the source")
        task = InsertTask(self._address, self._settings.table, self._topic, self._epoch, shape, self._lineage)
        rows = _in_order(batch) if shape is Shape.MESSAGE else batch
        written, _ = total(self.name, rows.mapInArrow(task, OUTCOME).collect())
        return written or Written()

    def close(self) -> None:
        self._session.close()


def _in_order(batch: DataFrame) -> DataFrame:
    """Messages behind a transform, which may have moved them about: those of a partition together and in order."""
    lanes = batch.sparkSession.sparkContext.defaultParallelism
    return batch.repartition(lanes, "ordinal").sortWithinPartitions("ordinal", "commit_lsn").select(*MESSAGES.fieldNames())
