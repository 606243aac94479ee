"""A run as others see it: figures of its databases, asked now and then, and told in the log and over HTTP."""

from headwater.spark.monitor.creek import CreekMetrics, LogCounter, reads_of
from headwater.spark.monitor.listen import Listener
from headwater.spark.monitor.watch import Seen, Watch

__all__ = ["CreekMetrics", "Listener", "LogCounter", "Seen", "Watch", "reads_of"]
