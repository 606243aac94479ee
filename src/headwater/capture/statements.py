"""The statements of capture, typed."""

from headwater.model import Lsn
from headwater.postgres.statements import Statement, load

SQL = load("headwater.capture")

# Logical messages with this prefix are ours: they carry nothing, and only make the stream move.
HEARTBEAT_PREFIX = "headwater.heartbeat"


def wal_position() -> Statement[Lsn]:
    """One row: the end of the WAL, or None on a standby, which cannot write."""
    return SQL["wal_position"].bind(Lsn)


def emit_heartbeat() -> Statement[Lsn]:
    """One row: where the heartbeat stands in the WAL."""
    return SQL["emit_heartbeat"].bind(Lsn, prefix=HEARTBEAT_PREFIX)


def commit_locally() -> Statement[None]:
    """For the session: commits wait for no standby."""
    return SQL["commit_locally"].compose()


def missing_publications(names: tuple[str, ...]) -> Statement[str]:
    """A row for each of the publications that does not exist."""
    return SQL["missing_publications"].bind(str, names=list(names))
