"""What is asked for by SQL: heard of, and done beside the queries."""

import logging
import random
from contextlib import closing, suppress
from threading import Event, Thread

import psycopg
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.creek.consumer import statements
from headwater.creek.consumer.statements import Request
from headwater.errors import HeadwaterError
from headwater.postgres.backoff import Backoff
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.creek_apply.counts import Counts
from headwater.spark.creek_apply.settings import ApplySettings, Mode
from headwater.spark.creek_apply.snapshot import SnapshotLoader
from headwater.spark.creek_apply.tables import create_from_schema
from headwater.spark.failure import translate
from headwater.spark.sinks.postgres.session import Session

_log = logging.getLogger(__name__)

# With the waits between them about ten seconds: enough for a server that restarts.
_TRIES = 5


class Listener:
    """Hears when something is asked for."""

    def __init__(self, url: str) -> None:
        self._url = url
        with translated(url):
            self.connection = connect_sync(url)
            execute_sync(self.connection, statements.listen())

    def wait(self, seconds: float) -> bool:
        """Whether anything was asked for within some seconds."""
        with translated(self._url):
            return any(True for _ in self.connection.notifies(timeout=seconds, stop_after=1))

    def close(self) -> None:
        with suppress(psycopg.Error):
            self.connection.close()


class Worker:
    """Does what was asked for, one after the other, beside the queries."""

    def __init__(self, spark: SparkSession, settings: ApplySettings, counts: Counts) -> None:
        self._spark, self._settings, self._counts = spark, settings, counts
        self._thread: Thread | None = None
        self._ended = Event()

    def begin(self, connection: Connection) -> None:
        """Begin with what waits, unless something is being done."""
        if self._thread is not None and self._thread.is_alive():
            return
        for request in fetch_sync(connection, statements.take_request()):
            self._thread = Thread(target=self._run, args=[request], name="creek request", daemon=True)
            self._thread.start()

    def work_off(self, connection: Connection) -> None:
        """Do all that waits."""
        while found := fetch_sync(connection, statements.take_request()):
            self._run(found[0])

    def stop(self) -> None:
        """Leave what is being done, which is begun anew by the next run."""
        self._ended.set()

    def _run(self, request: Request) -> None:
        failures, error = 0, self._attempt(request)
        while error is not None and error.retryable and failures < _TRIES and not self._ended.is_set():
            failures += 1
            wait = Backoff().after(failures, random.random()).total_seconds()
            _log.warning("%s: %s; trying again in %.1f s", request.command, error, wait)
            self._ended.wait(wait)
            error = self._attempt(request)
        # Whoever stops leaves it to the next run.
        if not self._ended.is_set():
            self._end(request, error)

    def _attempt(self, request: Request) -> HeadwaterError | None:
        try:
            self._do(request)
        except (HeadwaterError, PySparkException, psycopg.Error) as exc:
            return translate(exc)
        return None

    def _end(self, request: Request, error: HeadwaterError | None) -> None:
        if error is not None:
            _log.error("%s: %s", request.command, error)
        said = None if error is None else str(error)
        with suppress(psycopg.Error, HeadwaterError), closing(connect_sync(self._settings.url)) as connection:
            fetch_sync(connection, statements.end_request(request, said))

    def _do(self, request: Request) -> None:
        mapping, mode = request.mapping, Mode(request.mode)
        loader = SnapshotLoader(self._spark, self._settings)
        match request.kind:
            case "create":
                with closing(Session(self._settings.url)) as session:
                    create_from_schema(self._settings, session, mapping)
            case "snapshot":
                self._counts.add_snapshot(mapping, loader.take(mapping, mode))
            case _:
                self._counts.add_snapshot(mapping, loader.apply(mapping, mode, request.name or ""))
