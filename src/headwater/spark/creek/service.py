"""The part of a running pipeline that answers requests over NATS: a thread with a connection of its own.

A server that cannot be reached is tried again for as long as the pipeline runs, which goes on without: requests are no part
of delivery.
"""

import asyncio
import logging
from contextlib import suppress
from threading import Event, Thread
from types import MappingProxyType
from typing import Final, Self

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from headwater.creek.names import Names
from headwater.postgres.connect import complete
from headwater.spark.creek.answering import Answering
from headwater.spark.creek.counts import SnapshotCounts
from headwater.spark.creek.reading import Cores
from headwater.spark.creek.snapshot import Desk
from headwater.spark.settings import NatsSinkSettings, PipelineSettings

_log = logging.getLogger(__name__)

# How long a start waits for the subscriptions, and an end for the thread.
_START_SECONDS: Final = 5.0
_END_SECONDS: Final = 30.0
_WATCHFUL: Final = MappingProxyType(
    {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3", "tcp_user_timeout": "30000"}
)


class RequestService:
    """Answers requests for one database's schemas and snapshots from `__enter__` to `__exit__`, once.

    `is_listening` is set while the broker knows of us.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        sink: NatsSinkSettings,
        database: str,
        counts: SnapshotCounts | None = None,
    ) -> None:
        self.counts = counts or SnapshotCounts()
        self.is_listening = Event()
        self._facts = {"pipeline": settings.name, "sink": sink.name}
        desk = Desk(
            spark=spark,
            cores=Cores(spark),
            url=_watchful(settings.source.url),
            publication=settings.source.publication,
            pipeline=settings.name,
            state_url=settings.state_url,
            tables=sink.requests_tables,
            names=Names(sink.namespace, database, sink.generation),
            access=sink.access,
            limits=sink.limits,
            counts=self.counts,
        )
        self._answering = Answering(desk, self._facts, self.is_listening)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="requests", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self.is_listening.wait(_START_SECONDS):
            _log.warning("requests are not answered yet: NATS cannot be reached", extra=self._facts)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End what is being read, with a word about it in its topic, and hang up."""
        # The loop may have ended by itself.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._answering.stop)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._answering.run())
        except Exception:  # noqa: BLE001 - it is logged
            _log.exception("requests are not answered any more", extra=self._facts)
        finally:
            self.is_listening.clear()
            self._loop.close()


def _watchful(url: str) -> str:
    """The connection string, so that a server which has gone without a word is noticed within half a minute."""
    return complete(url, **{name: value for name, value in _WATCHFUL.items() if name not in conninfo_to_dict(url)})
