"""Writing down what of an outbox is delivered, when a batch of it is."""

from datetime import timedelta

from headwater.outbox.checkpoint import CheckpointStore
from headwater.spark.sources.outbox.offset import OutboxOffset, Phase


class Delivery:
    """Records ranges in the checkpoint. `skew` is what is taken off the time of messages that tell no transaction."""

    def __init__(self, store: CheckpointStore, skew: timedelta) -> None:
        self._store, self._skew = store, skew

    def record(self, end: OutboxOffset) -> None:
        """All sinks have made the range that ends at an offset durable."""
        newest = None if end.newest_at is None else end.newest_at + self._skew
        if end.key is not None:
            self._store.save_recovered(end.generation, end.key, end.content.changes)
        if end.phase is Phase.RECOVERED:
            self._store.end_recovery(end.generation, newest)
        elif end.xids:
            self._store.save_delivered(end.generation, end.xids)
        elif newest is not None:
            self._store.save_newest(end.generation, newest)
