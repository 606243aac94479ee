"""The sink that publishes changes to NATS JetStream, as Creek does or as JSON."""

from headwater.spark.sinks.nats.sink import NatsSink

__all__ = ["NatsSink"]
