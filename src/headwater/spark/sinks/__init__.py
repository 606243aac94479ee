"""Where a pipeline delivers to: one contract, and a folder or module for each kind of target."""

from headwater.spark.sinks.sink import Sink, Span, Written

__all__ = ["Sink", "Span", "Written"]
