"""Sees to it that every subscription can go on: gives new ones a place in their stream, and says why others are lost."""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial

from headwater.brokers.nats.streams import StreamInfo
from headwater.capture.tables import Reading, TableStore
from headwater.creek.consumer.statements import (
    Place,
    Subscription,
    ask_for_snapshot,
    fail_subscription,
    find_stream,
    list_subscriptions,
    part_subscriptions,
    place_subscription,
    retry_failed,
    save_stream,
)
from headwater.creek.names import Kind
from headwater.errors import PositionError
from headwater.model import Lsn
from headwater.postgres.connect import Connection
from headwater.postgres.statements import Statement, execute_sync, fetch_sync
from headwater.spark.creek_apply.settings import PIPELINE, ApplySettings, Mode
from headwater.spark.sinks.postgres.positions import hold
from headwater.spark.sinks.postgres.target import read_targets
from headwater.spark.sources.creek.stream import StreamWatch, identity_of

_log = logging.getLogger(__name__)

# Somebody may have made a table that was missing, or added a column: soon enough for him, and seldom enough for the log.
_RETRY_SECONDS = 60.0


class Keeper:
    """Looks through the subscriptions again and again, and says what waits for something once."""

    def __init__(self, settings: ApplySettings) -> None:
        self._settings = settings
        self._said: set[str] = set()
        self._retry_at = 0.0

    def look(self, connection: Connection, epoch: int, running: Collection[str] = ()) -> list[str]:
        """The streams that have subscriptions which can go on, by name; those that are `running` are being read."""
        if time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            _write(self._settings, connection, epoch, retry_failed())
        streams, waiting = keep(self._settings, connection, epoch, running)
        for reason in waiting:
            if reason not in self._said:
                _log.warning("%s; its tables wait", reason)
        self._said = set(waiting)
        return streams


def keep(
    settings: ApplySettings, connection: Connection, epoch: int, running: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Look through the subscriptions: the streams that have some which can go on, and why those of others have to wait.

    Raises SinkFenced if a later run than that of `epoch` has taken over.
    """
    found = [one for one in fetch_sync(connection, list_subscriptions()) if one.is_active and one.error is None]
    _ask_for_doubtful(settings, connection, found)
    by_stream: dict[str, list[Subscription]] = {}
    for one in found:
        stream = settings.names(one.mapping.topic.database).stream(Kind.WAL)
        by_stream.setdefault(stream, []).append(one)
    streams, waiting = [], []
    for stream, some in sorted(by_stream.items()):
        try:
            with closing(StreamWatch(settings.access, stream)) as watch:
                info = watch.info()
        except PositionError as error:
            waiting.append(str(error))
            continue
        write = partial(_write, settings, connection, epoch)
        if _keep_stream(connection, write, stream, info, some):
            streams.append(stream)
        # Whoever reads the stream now has a place of its own in it, and fails by itself if that is lost.
        if stream not in running:
            _keep_place(connection, write, stream, info)
    return streams, waiting


def _ask_for_doubtful(settings: ApplySettings, connection: Connection, found: list[Subscription]) -> None:
    """Have snapshots loaded of tables whose source was altered in a way that no change tells what old rows have since."""
    by_name = {one.mapping.target.name: one for one in found}
    with closing(TableStore(settings.url, PIPELINE)) as store:
        known = {table.key: table for table in store.tables()}
        store.enlist([name for name in by_name if name not in known], "streaming", "followed by Creek")
        for name, table in known.items():
            if table.state == "wanted" and name in by_name:
                one = by_name[name]
                _log.warning("table %s: a snapshot is loaded, for %s", one.target, table.reason)
                fetch_sync(connection, ask_for_snapshot(one.mapping, Mode.UPSERT))
                store.save_loaded(Reading("", [name], [table.request], [None], "", Lsn(0)))


def _write(settings: ApplySettings, connection: Connection, epoch: int, *wanted: Statement[object]) -> None:
    """Do something in one transaction, in which no later run can take over."""
    with connection.transaction():
        hold(connection, settings.address(), epoch, [], [])
        for statement in wanted:
            execute_sync(connection, statement)


def _keep_stream(
    connection: Connection, write: Callable[..., None], stream: str, info: StreamInfo, found: list[Subscription]
) -> bool:
    """Whether any of a stream's subscriptions can go on."""
    targets = read_targets(connection, [one.mapping.target.name for one in found])
    good = 0
    for one in found:
        reason = _why_lost(one, stream, info)
        if one.mapping.target.name not in targets:
            reason = (
                f"table {one.target} is missing in the target; make it with `headwater creek apply create-schemas "
                f"{one.mapping}`, or load a snapshot"
            )
        if reason is not None:
            _log.error("table %s: left where it is: %s", one.target, reason)
            write(fail_subscription(one, reason))
            continue
        good += 1
        if one.place is None:
            beginning = Place(stream, identity_of(info), max(0, info.first_seq - 1))
            write(place_subscription(one.target, beginning))
    return good > 0


def _why_lost(one: Subscription, stream: str, info: StreamInfo) -> str | None:
    """Why a subscription cannot go on from where it is, if it cannot."""
    place = one.place
    if place is None:
        return None
    remedy = f"load a snapshot with `headwater creek apply snapshot {one.mapping}`"
    if place.stream != stream:
        return f"it was read from stream {place.stream!r}, and is in {stream!r} now; {remedy}"
    if place.identity != identity_of(info):
        return f"stream {stream!r} was deleted and made anew; {remedy}"
    if place.sequence > info.last_seq:
        return f"stream {stream!r} ends at {info.last_seq}, and the table is at {place.sequence} of it; {remedy}"
    first_needed = min([place.sequence + 1, *place.begun.values()])
    if first_needed < info.first_seq:
        return (
            f"stream {stream!r} begins at {info.first_seq}, and the table needs it from {first_needed} on: its limits have "
            f"removed what lies between; {remedy}"
        )
    return None


def _keep_place(connection: Connection, write: Callable[..., None], stream: str, info: StreamInfo) -> None:
    """If the stream has lost what comes next, go on at its end.

    Each table that missed it is left where it was. One that is further on, and misses nothing, is read by itself from there.
    """
    identity = identity_of(info)
    known = fetch_sync(connection, find_stream(stream, identity))
    if known and min([known[0].sequence + 1, *known[0].begun.values()]) < info.first_seq:
        place = Place(stream, identity, info.last_seq)
        write(part_subscriptions(stream, identity), save_stream(known[0].sequence, place))
