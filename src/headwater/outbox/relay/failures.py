"""What goes wrong with events, said in the log: at once, and then now and again however many there are."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.brokers.base import Left
from headwater.outbox.relay.outcome import Unpublished

_log = logging.getLogger(__name__)

# From one line of a kind to the next: a broker that refuses everything would else fill the log.
_EVERY_SECONDS: Final = 10.0
_DEAD: Final = (
    "%d events are dead: %s; `headwater outbox dead` lists them, and `headwater outbox revive` has them sent again once "
    "that is mended"
)
_NOT_TAKEN: Final = (
    "%d events were not taken: %s; they are tried again until they are taken or dead, and `headwater outbox status` tells "
    "how many wait"
)

Later = Callable[[float, Callable[[str], None], str], asyncio.TimerHandle]


@dataclass(slots=True)
class _Kind:
    """What was not said yet of one kind, with the reason of the last one; and when there may be something to say again."""

    count: int
    reason: str
    timer: asyncio.TimerHandle | None = None


class Failures:
    """Used in one event loop, whose `call_later` it is given."""

    def __init__(self, later: Later) -> None:
        self._later = later
        self._kinds: dict[str, _Kind] = {}

    def note(self, left: Sequence[Left], dead: Sequence[Unpublished]) -> None:
        """Of one attempt: what was not taken, and what is given up."""
        if left:
            self._note(_NOT_TAKEN, len(left), left[-1].reason)
        if dead:
            self._note(_DEAD, len(dead), dead[-1].error or "")

    def close(self) -> None:
        """Say what is left to say."""
        for sentence, kind in self._kinds.items():
            if kind.timer is not None:
                kind.timer.cancel()
            _say(sentence, kind)
        self._kinds.clear()

    def _note(self, sentence: str, count: int, reason: str) -> None:
        kind = self._kinds.setdefault(sentence, _Kind(0, reason))
        kind.count, kind.reason = kind.count + count, reason
        if kind.timer is None:
            self._tell(sentence)

    def _tell(self, sentence: str) -> None:
        kind = self._kinds[sentence]
        kind.timer = self._later(_EVERY_SECONDS, self._tell, sentence) if _say(sentence, kind) else None


def _say(sentence: str, kind: _Kind) -> bool:
    """Whether there was anything to say."""
    count, kind.count = kind.count, 0
    if count:
        _log.warning(sentence, count, kind.reason)
    return bool(count)
