"""A run as others see it: figures of its databases, asked now and then, and told in the log and over HTTP."""

from headwater.spark.monitor.listen import Listener, bind
from headwater.spark.monitor.watch import Seen, Watch

__all__ = ["Listener", "Seen", "Watch", "bind"]
