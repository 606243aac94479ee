"""What a server's version and settings mean for capture. Pure."""

from collections.abc import Iterator

from headwater.cli.check.finding import Finding, error, ok, warning
from headwater.cli.output import human_bytes
from headwater.postgres.catalog import Server

_OLDEST, _NEWEST = 15, 18
# The first version that decodes on a standby.
_STANDBY_DECODING = 16
# A reader that works through a large batch must find time for a status update; five seconds leave little.
_SHORT_TIMEOUT_MS = 5000


def check_server(server: Server, *, needs_slot: bool) -> Iterator[Finding]:
    """The findings about a server; `needs_slot` unless the wanted slot is there already."""
    yield _version(server)
    yield _wal_level(server)
    if server.in_recovery:
        yield _standby(server)
    yield _room(
        "replication slots", "max_replication_slots", server.used_replication_slots, server.max_replication_slots, needs_slot
    )
    yield _room("WAL senders", "max_wal_senders", server.used_wal_senders, server.max_wal_senders, True)
    yield _wal_kept(server)
    yield _sender_timeout(server)
    if server.idle_replication_slot_timeout_seconds is not None:
        yield _idle_timeout(server.idle_replication_slot_timeout_seconds)


def _version(server: Server) -> Finding:
    subject, found = "server version", f"PostgreSQL {server.version}"
    if server.major < _OLDEST:
        return error(subject, f"{found} is too old", f"upgrade to PostgreSQL {_OLDEST} to {_NEWEST}")
    if server.major > _NEWEST:
        return warning(subject, f"{found} is newer than this release", "upgrade Headwater, or try it with care")
    return ok(subject, found)


def _wal_level(server: Server) -> Finding:
    if server.wal_level == "logical":
        return ok("wal_level", "logical")
    return error(
        "wal_level",
        f"{server.wal_level}, which leaves out what decoding needs",
        "run `alter system set wal_level = 'logical'` and restart the server",
    )


def _standby(server: Server) -> Finding:
    if server.major < _STANDBY_DECODING:
        return error(
            "standby", "this server is a standby, and only version 16 and later decode there", "connect to its primary"
        )
    return warning(
        "standby",
        "this server is a standby, where nothing can be written: no publication, no heartbeat",
        "connect to its primary, or make the publication there and set hot_standby_feedback = on here",
    )


def _room(subject: str, setting: str, used: int, most: int, is_needed: bool) -> Finding:
    found = f"{used} of {most} in use"
    remedy = f"raise {setting} and restart the server"
    if setting == "max_replication_slots":
        remedy = f"drop slots that nobody reads (see `headwater slots`), or {remedy}"
    if used >= most and is_needed:
        return error(subject, f"{found}, none is free", remedy)
    if used >= most - 1:
        return warning(subject, f"{found}, little is left for a second reader or a snapshot", remedy)
    return ok(subject, found)


def _wal_kept(server: Server) -> Finding:
    if server.max_slot_wal_keep_bytes is None:
        return warning(
            "max_slot_wal_keep_size",
            "unlimited: a reader that stays away lets WAL grow until the server's disk is full",
            "set it to what the disk can spare and a reader may be away for, and watch `headwater slots`",
        )
    kept = human_bytes(server.max_slot_wal_keep_bytes)
    return ok("max_slot_wal_keep_size", f"{kept}; a reader that falls further behind loses its slot")


def _sender_timeout(server: Server) -> Finding:
    milliseconds = server.wal_sender_timeout_ms
    if milliseconds == 0:
        return warning(
            "wal_sender_timeout",
            "off: a reader that died without a word keeps its slot for ever",
            "set it to 60s, the default",
        )
    found = f"{milliseconds / 1000:g} s"
    if milliseconds < _SHORT_TIMEOUT_MS:
        return warning(
            "wal_sender_timeout", f"{found}, so short that a busy network breaks the stream", "set it to 60s, the default"
        )
    return ok("wal_sender_timeout", found)


def _idle_timeout(seconds: int) -> Finding:
    return warning(
        "idle_replication_slot_timeout",
        f"a slot that nobody reads for {seconds} s is invalidated, and what it held is lost",
        "make it longer than any stop of the reader, or set it to 0",
    )
