"""What goes wrong with events, said in the log: at once, and then now and again however many there are."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from headwater.brokers.base import Left
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.outcome import Unpublished

_log = logging.getLogger(__name__)

# From one line of a kind to the next: a broker that refuses everything would else fill the log.
_EVERY_SECONDS: Final = 10.0
# So many events are told apart in that time; more are as good as any number, and take memory.
_MOST: Final = 10_000
_DEAD: Final = (
    "%s dead: %s; `headwater outbox dead` lists dead events, and `headwater outbox revive` has them sent again once that is "
    "mended"
)
_NOT_TAKEN: Final = (
    "%s not taken: %s; such events are tried again until they are taken or dead, and `headwater outbox status` tells how "
    "many wait"
)
# Of one event, and of several.
_VERBS: Final = {_DEAD: ("is", "are"), _NOT_TAKEN: ("was", "were")}

Later = Callable[[float, Callable[[str], None], str], asyncio.TimerHandle]


@dataclass(slots=True)
class _Kind:
    """What was not said yet of one kind, with the reason of the last one; and when there may be something to say again."""

    reason: str
    # An event that was tried several times meanwhile is one.
    ids: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class Failures:
    """Used in one event loop, whose `call_later` it is given."""

    def __init__(self, later: Later) -> None:
        self._later = later
        self._kinds: dict[str, _Kind] = {}

    def note(self, entries: Sequence[Entry], left: Sequence[Left], unpublished: Sequence[Unpublished]) -> None:
        """Of one attempt: which of the entries were not taken, and what is given up of what is not published."""
        if left:
            self._note(_NOT_TAKEN, (entries[one.index].id for one in left), left[-1].reason)
        if dead := [one for one in unpublished if one.status == "dead"]:
            self._note(_DEAD, (one.entry.id for one in dead), dead[-1].error or "")

    def close(self) -> None:
        """Say what is left to say."""
        for sentence, kind in self._kinds.items():
            if kind.timer is not None:
                kind.timer.cancel()
            _say(sentence, kind)
        self._kinds.clear()

    def _note(self, sentence: str, ids: Iterable[str], reason: str) -> None:
        kind = self._kinds.setdefault(sentence, _Kind(reason))
        kind.reason = reason
        kind.ids.update(islice(ids, _MOST - len(kind.ids)))
        if kind.timer is None:
            self._tell(sentence)

    def _tell(self, sentence: str) -> None:
        kind = self._kinds[sentence]
        kind.timer = self._later(_EVERY_SECONDS, self._tell, sentence) if _say(sentence, kind) else None


def _say(sentence: str, kind: _Kind) -> bool:
    """Whether there was anything to say."""
    ids, kind.ids = kind.ids, set()
    if ids:
        _log.warning(sentence, _counted(len(ids), *_VERBS[sentence]), kind.reason)
    return bool(ids)


def _counted(events: int, is_: str, are: str) -> str:
    if events == 1:
        return f"1 event {is_}"
    return f"{'at least ' if events == _MOST else ''}{events:,} events {are}"
