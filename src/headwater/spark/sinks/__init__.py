"""Where a pipeline delivers to: one contract, and a folder or module for each kind of target."""

from headwater.spark.sinks.sink import Loading, Sink, Span, Written

__all__ = ["Loading", "Sink", "Span", "Written"]
