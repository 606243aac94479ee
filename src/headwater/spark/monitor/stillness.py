"""For how long a slot's position has stood still while the server's WAL moved on, or did not answer. Pure."""

from dataclasses import dataclass

from headwater.model import Lsn


@dataclass(slots=True)
class Stillness:
    """Fed with what is seen of the slot and the server, at times of any clock.

    The position of a pipeline that is well follows the server even when nothing of its tables is written, for what is not
    ours is confirmed too. So one that stands still, while the server moves on, is one that is stuck.
    """

    _confirmed: Lsn | None = None
    _flushed: Lsn | None = None
    _moved_at: float = 0.0
    _seen_at: float = 0.0

    def see(self, at: float, confirmed: Lsn | None, flushed: Lsn) -> None:
        has_moved = confirmed != self._confirmed or self._flushed is None
        # A server that did not move since then gives nothing to confirm.
        if has_moved or confirmed is None or flushed <= max(self._flushed or Lsn(0), confirmed):
            self._moved_at, self._flushed = at, flushed
        self._confirmed, self._seen_at = confirmed, at

    def miss(self, at: float) -> None:
        """The source did not answer, so that it is not known to have moved."""
        self._seen_at = at

    @property
    def seconds(self) -> float:
        """How long it has stood still, as of the last time it was seen."""
        return self._seen_at - self._moved_at
