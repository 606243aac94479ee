"""The sinks that settings describe."""

from collections.abc import Sequence
from contextlib import closing
from typing import assert_never

from headwater.model import Lineage
from headwater.postgres.catalog import read_server
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.spark.rules import OutboxLanes
from headwater.spark.settings import (
    BrokerSinkSettings,
    NatsSinkSettings,
    PipelineSettings,
    SinkSettings,
    SourceSettings,
    TopicSettings,
)
from headwater.spark.sink_settings import (
    ConsoleSinkSettings,
    MessageTableSettings,
    NoopSinkSettings,
    ParquetSinkSettings,
    PostgresSinkSettings,
    TopicSinkSettings,
)
from headwater.spark.sinks.brokers import BrokerSink
from headwater.spark.sinks.console import ConsoleSink
from headwater.spark.sinks.messages import MessageTableSink
from headwater.spark.sinks.nats import NatsSink
from headwater.spark.sinks.noop import NoopSink
from headwater.spark.sinks.parquet import ParquetSink
from headwater.spark.sinks.postgres import PostgresSink
from headwater.spark.sinks.sink import Sink
from headwater.spark.sinks.topic import TopicSink


def build_sinks(settings: PipelineSettings) -> list[Sink]:
    """The sinks of a pipeline, not yet opened. Asks the source's server whose positions they will get."""
    source = settings.source
    lineage = _lineage(source)
    return [
        build_sink(
            sink,
            pipeline=settings.name,
            source_url=source.url,
            state_url=settings.state_url,
            tables=source.tables,
            publication=source.publication,
            lineage=lineage,
            keyed=source.lane_by is OutboxLanes.KEY,
        )
        for sink in settings.sinks
    ]


def build_sink(  # noqa: PLR0913 - what the kinds of sinks need, taken together
    settings: SinkSettings,
    *,
    pipeline: str,
    source_url: str,
    state_url: str,
    tables: Sequence[str],
    publication: str = "",
    lineage: Lineage | None = None,
    keyed: bool = False,
) -> Sink:
    """The sink, not yet opened. `tables` are those of the source, by name or pattern, `publication` what they come through.

    Rows of the DataFrame `changes` do not say what their positions belong to: `lineage` does, if it is known. `keyed` if the
    messages of an outbox keep their order by key alone.
    """
    match settings:
        case PostgresSinkSettings():
            return PostgresSink(
                settings, pipeline=pipeline, source_url=source_url, state_url=state_url, tables=tables, lineage=lineage
            )
        case MessageTableSettings():
            return MessageTableSink(settings, pipeline=pipeline, state_url=state_url, topic=tables[0], lineage=lineage)
        case TopicSinkSettings():
            return TopicSink(settings, pipeline=pipeline, state_url=state_url, lineage=lineage)
        case ParquetSinkSettings():
            return ParquetSink(settings, pipeline=pipeline, state_url=state_url, lineage=lineage)
        case ConsoleSinkSettings():
            return ConsoleSink(settings, pipeline=pipeline, state_url=state_url, lineage=lineage)
        case NoopSinkSettings():
            return NoopSink(settings)
        case BrokerSinkSettings():
            schema, _, name = tables[0].partition(".")
            return BrokerSink(
                settings, pipeline=pipeline, state_url=state_url, table=(schema, name), lineage=lineage, keyed=keyed
            )
        case NatsSinkSettings():
            return NatsSink(
                settings,
                pipeline=pipeline,
                source_url=source_url,
                state_url=state_url,
                tables=tables,
                publication=publication,
                lineage=lineage,
            )
        case _:
            assert_never(settings)


def _lineage(source: SourceSettings) -> Lineage:
    if not isinstance(source, TopicSettings):
        with ReplicationConnection(source.url) as replication:
            return replication.lineage(source.slot)
    with translated(source.url), closing(connect_sync(source.url)) as connection:
        server = read_server(connection)
    # Offsets of a topic go on where they were, whoever was promoted.
    return Lineage(server.system_identifier, 1, (), server.database, source.topic)
