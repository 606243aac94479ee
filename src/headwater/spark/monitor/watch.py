"""A thread that asks the source and the state database for figures every few seconds, and warns of what will go wrong.

Whoever wants the figures gets the last ones, at once: a database that hangs or is away holds up nobody but this thread.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headwater.errors import HeadwaterError
from headwater.postgres.catalog import read_server
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.replication.slot import Slot, find_slot
from headwater.spark.monitor.stillness import Stillness
from headwater.spark.reporter import Reporter
from headwater.spark.settings import PipelineSettings, TopicSettings
from headwater.spark.state import (
    Limits,
    Phase,
    Progress,
    SavedReport,
    ServerPosition,
    TableLoad,
    count_open_letters,
    fetch_idle_seconds,
    fetch_report,
    fetch_server_position,
    list_loads,
    set_asking_session,
    uses,
)
from headwater.spark.state.limits import Alarms

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 5.0
# Short, so that figures are not much older than the interval; what the URL says of it wins.
_CONNECT_SECONDS = "3"
# A batch seldom takes a sink that long, unless its target is away.
_SLOW_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last seen of a pipeline's databases; `is_source_up` and `is_state_up` are whether they have answered then."""

    saved: SavedReport | None = None
    slot: Slot | None = None
    server: ServerPosition | None = None
    limits: Limits = field(default_factory=Limits)
    letters: Mapping[str, int] = field(default_factory=dict)
    loads: tuple[TableLoad, ...] = ()
    is_source_up: bool = False
    is_state_up: bool = False


class Watch:
    """Looks at a pipeline's databases from the beginning of a `with` to its end; `seen` is what it saw last."""

    def __init__(self, settings: PipelineSettings, reporter: Reporter) -> None:
        self._settings, self._reporter = settings, reporter
        self._connections: dict[str, Connection] = {}
        self._alarms, self._slow_since = Alarms(), 0.0
        self._errors: dict[str, str] = {}
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="watch", daemon=True)
        self.seen = Seen()
        self.stillness = Stillness()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        # A statement that hangs ends by its own limit; nobody waits for it.
        self._stopping.set()

    @property
    def progress(self) -> Progress:
        """What `headwater status` would say, as of the last look; what the source said is left out when it is away."""
        seen, source = self.seen, self._settings.source
        is_up = seen.is_source_up
        return Progress(
            self._settings.name,
            source.slot,
            seen.saved,
            seen.slot if is_up else None,
            seen.server if is_up else None,
            seen.limits,
            seen.letters,
            seen.loads,
            # By this run, or by the one that it stands by for.
            is_held=True,
            has_slot=not isinstance(source, TopicSettings),
        )

    def look(self) -> None:
        """Ask both databases, and warn of what has to be warned of."""
        self._ask_state()
        self._ask_source()
        self._warn()

    def close(self) -> None:
        """Hang up, for whoever has looked without a `with`."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _run(self) -> None:
        while True:
            self.look()
            if self._stopping.wait(_INTERVAL_SECONDS):
                break
        self.close()

    def _ask_state(self) -> None:
        name = self._settings.name
        try:
            with translated(self._settings.state_url):
                connection = self._connection(self._settings.state_url)
                self.seen = replace(
                    self.seen,
                    saved=fetch_report(connection, name),
                    letters=count_open_letters(connection, name),
                    loads=tuple(list_loads(connection, name)),
                    is_state_up=True,
                )
        except (HeadwaterError, psycopg.Error) as exc:
            self._forget(self._settings.state_url, exc)
            self.seen = replace(self.seen, is_state_up=False)

    def _ask_source(self) -> None:
        source = self._settings.source
        try:
            with translated(source.url):
                connection = self._connection(source.url)
                slot, server = find_slot(connection, source.slot), read_server(connection)
                limits = Limits(
                    server.max_slot_wal_keep_bytes,
                    server.idle_replication_slot_timeout_seconds,
                    fetch_idle_seconds(connection, source.slot),
                )
                position = fetch_server_position(connection)
            self.seen = replace(self.seen, slot=slot, server=position, limits=limits, is_source_up=True)
            confirmed = slot.confirmed_flush_lsn if slot is not None else None
            self.stillness.see(self._reporter.clock(), confirmed, position.flush_lsn)
        except (HeadwaterError, psycopg.Error) as exc:
            self._forget(source.url, exc)
            self.stillness.miss(self._reporter.clock())
            self.seen = replace(self.seen, is_source_up=False)

    def _connection(self, url: str) -> Connection:
        if url not in self._connections:
            given = conninfo_to_dict(url)
            self._connections[url] = connect_sync(
                url, **({} if "connect_timeout" in given else {"connect_timeout": _CONNECT_SECONDS})
            )
            set_asking_session(self._connections[url])
        return self._connections[url]

    def _forget(self, url: str, error: Exception) -> None:
        """The next look connects anew. Whoever reads and writes there says that it is away; here it is only noted."""
        _log.debug("no figures: %s", error, extra={"pipeline": self._settings.name})
        connection = self._connections.pop(url, None)
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _warn(self) -> None:
        facts = self._reporter.facts
        if self._reporter.report.phase is Phase.STANDING_BY:
            return
        if self.seen.is_source_up:
            for use in self._alarms.new(uses(self.seen.slot, self.seen.limits)):
                _log.warning("%s", use.said, extra={**facts, "setting": use.setting, "used": round(use.part, 3)})
        errors = {load.name: load.error for load in self.seen.loads if load.error is not None}
        for table, error in errors.items() - self._errors.items():
            _log.warning("table %s could not be read as a whole: %s", table, error, extra={**facts, "table": table})
        self._errors = errors
        pulse = self._reporter.pulse
        waited = self._reporter.clock() - pulse.sink_at
        if pulse.sink is not None and waited > _SLOW_SECONDS and pulse.sink_at != self._slow_since:
            self._slow_since = pulse.sink_at
            said = "sink %s has been at its batch for %.0f s; its target may be away or slow"
            _log.warning(said, pulse.sink, waited, extra={**facts, "sink": pulse.sink})
