"""The source `headwater.outbox`: messages that applications write into a table in their own transactions."""

from headwater.spark.sources.outbox.offset import OutboxOffset
from headwater.spark.sources.outbox.planner import INSERTS
from headwater.spark.sources.outbox.source import NAME, OutboxDataSource

__all__ = ["INSERTS", "NAME", "OutboxDataSource", "OutboxOffset"]
