"""How capture reads: from where, how much it may hold, how often it reports."""

import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from headwater.errors import SettingsError
from headwater.model import Lsn
from headwater.postgres.replication.slot import check_slot_name

MIB = 1024 * 1024
# Decoders count in 32 bits, and one message of up to a gigabyte may come on top.
_LARGEST_BATCH = 256 * MIB
# More than a heartbeat, and what the server writes after it by itself, leave in the WAL.
_LEAST_HEARTBEAT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """One slot to read and the publications to read through it.

    `start` is where to begin when that lies after the slot's confirmed position. A `temporary` slot is created at the start
    and lives as long as its connection, so it cannot go on after a broken one. `buffer_bytes` bounds what is read but not
    yet taken; one batch more may be in the making. With `streaming` the server sends large transactions while they are in
    progress, and they wait in `spill_directory` for their commit; without, it keeps them itself. Switch it off where
    transactional logical messages have to be exact: of those the server does not say which subtransaction wrote them, so
    one of an aborted subtransaction that was sent before the abort is delivered. Those with the prefix `emitted` come as
    rows of the table `EMITTED`.
    """

    url: str = field(repr=False)
    slot: str
    publications: tuple[str, ...]
    start: Lsn | None = None
    temporary: bool = False
    batch_bytes: int = 1 * MIB
    buffer_bytes: int = 8 * MIB
    streaming: bool = True
    spill_directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    # Slots move this often; PostgreSQL's own receivers default to ten seconds, which holds WAL longer than need be.
    status_interval: timedelta = timedelta(seconds=1)
    heartbeat_interval: timedelta = timedelta(seconds=10)
    # Far above what an idle server writes by itself (checkpoints, running transactions), so that a heartbeat never
    # answers another one, and far below what anybody would mind to retain.
    heartbeat_bytes: int = 1 * MIB
    # How long to wait for a slot whose last reader has just died: the server keeps one that fell silent for
    # wal_sender_timeout, a minute by default.
    slot_patience: timedelta = timedelta(seconds=90)
    # Whether the slot moves by itself past what holds nothing of ours. Whoever keeps a record of where the slot is says no.
    confirm_idle: bool = True
    emitted: str | None = None

    def __post_init__(self) -> None:
        check_slot_name(self.slot)
        if not self.publications:
            raise SettingsError("name at least one publication to capture")
        if not 1 <= self.batch_bytes <= min(self.buffer_bytes, _LARGEST_BATCH):
            raise SettingsError("batch_bytes must be at least 1, and at most buffer_bytes and 256 MiB")
        if self.emitted is not None and self.streaming:
            raise SettingsError("emitted messages are exact without streaming only; switch it off")
        if self.slot_patience < timedelta(0):
            raise SettingsError("slot_patience must not be negative")
        if self.heartbeat_bytes < _LEAST_HEARTBEAT:
            raise SettingsError(
                f"heartbeat_bytes must be at least {_LEAST_HEARTBEAT}, or heartbeats would answer each other"
            )
        if self.status_interval <= timedelta(0) or self.heartbeat_interval <= timedelta(0):
            raise SettingsError("status_interval and heartbeat_interval must be longer than nothing")
        if not self.spill_directory.is_dir():
            raise SettingsError(f"the directory for spilled transactions, {self.spill_directory}, does not exist")
