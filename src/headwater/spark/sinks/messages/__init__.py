"""Tables of messages as sinks, for topics."""

from headwater.spark.sinks.messages.sink import MessageTableSink

__all__ = ["MessageTableSink"]
