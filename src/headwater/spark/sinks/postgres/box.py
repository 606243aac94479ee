"""The dead letters of one table while its changes are written: which rows they concern, and which of them are outdated.

A later change of the same row that has all its columns makes a letter pointless. One that left columns alone does not:
what it left alone may be in the letter, so it becomes a letter too, until a whole row comes. A letter with a `new_key` gives
a row another key that it does not have yet, for columns of it were left alone: the row stays under its old key, and whatever
concerns either key waits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from headwater.model import Position
from headwater.spark.frame import Layout
from headwater.spark.letters import Letter, OpenLetter
from headwater.spark.sinks.postgres.apply import Held, Refused
from headwater.spark.sinks.postgres.log import TRUNCATE, Arrays, Log
from headwater.spark.sinks.postgres.session import Address
from headwater.spark.sinks.postgres.target import Fit, Sent


@dataclass(frozen=True, slots=True)
class Refusal:
    """A change, alone in its log, that the target does not take, and why.

    It `moves` if the row has yet to leave its old key.
    """

    run: "Run"
    log: Log
    reason: str
    moves: bool

    @property
    def position(self) -> Position:
        return self.log.position(0)


class Run(Protocol):
    """Changes of one table with the same columns, from whatever source."""

    def __len__(self) -> int: ...

    @property
    def sent(self) -> Sent: ...

    @property
    def layout(self) -> Layout | None:
        """What the table looks like; None if nobody can tell any more, as behind a transform."""

    @property
    def start(self) -> Position:
        """Where the first of the changes is."""

    def log(self, fit: Fit) -> Log:
        """The changes as a log."""

    def keys(self, log: Log, columns: Arrays) -> list[str]:
        """Keys of the target, given by the texts of their columns, in a form that compares."""

    def key_of(self, log: Log, key: Mapping[str, Any]) -> str | None:
        """The key of a letter in the same form; None if it is not the target's key."""

    def letters(self, refused: Sequence[Refusal], address: Address) -> list[Letter]:
        """The letters of changes of this run, in their order."""


class Postponed(Exception):
    """A change was refused for something that another lane or table may still bring."""


@dataclass(slots=True)
class LetterBox:
    """Hears of a table's changes as they are written, and keeps the letters that come of it.

    `open` are the letters from before that are not outdated. A refusal with an SQLSTATE among `passing` postpones the table.
    """

    address: Address
    run: Run
    passing: Sequence[str] = ()
    open: list[OpenLetter] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    outdated: set[Position] = field(default_factory=set)
    _waiting: dict[str, list[Position]] = field(default_factory=dict)
    _held: set[str] = field(default_factory=set)
    _holding: list[Position] = field(default_factory=list)

    def outdate(self, log: Log) -> list[int]:
        """Take out the letters from before that these changes make pointless, and return their ids."""
        if not self.open:
            return []
        truncates = [log.position(at) for at in (log.tags == TRUNCATE).nonzero()[0].tolist()]
        last = dict(self._whole(log))
        found: list[OpenLetter] = []
        left: list[OpenLetter] = []
        for letter in self.open:
            keys = () if letter.new_key is not None else self._of(log, letter)
            later = truncates + [last[key] for key in keys if key in last]
            (found if any(map(letter.is_before, later)) else left).append(letter)
        self.open = left
        return [letter.id for letter in found]

    def turn_to(self, run: Run, log: Log) -> None:
        """The changes that follow are those of another run."""
        self.run = run
        for letter in self.open:
            if letter.new_key is not None:
                self._held.update(self._of(log, letter))
                continue
            for key in self._of(log, letter):
                self._waiting.setdefault(key, [])

    def before(self, log: Log) -> None:
        if self._held and any(key in self._held for key in self._concerned(log)):
            raise Held("an earlier change, which gives the row another key, is a dead letter; replay or drop that first")
        if self._waiting and log.kept.any():
            whole = {key for key, _ in self._whole(log)}
            if any(key in self._waiting and key not in whole for key in self._concerned(log)):
                raise Refused("an earlier change of the row is a dead letter, and this one does not have all of its columns")

    def after(self, log: Log) -> None:
        if not self._waiting and not self._held:
            return
        if (log.tags == TRUNCATE).any():
            self._forget(list(self._waiting))
            self._held.clear()
            self.outdated.update(self._holding)
        self._forget([key for key, _ in self._whole(log)])

    def refuse(self, log: Log, refused: Refused) -> None:
        if refused.sqlstate in self.passing:
            raise Postponed
        moves = bool(log.moved[0] and (log.kept[0] or isinstance(refused, Held)))
        refusal = Refusal(self.run, log, refused.reason, moves)
        self.refused.append(refusal)
        if moves:
            self._held.update(self._concerned(log))
            self._holding.append(refusal.position)
            return
        if log.moved[0]:
            # The row has left its old key, and whatever waited there with it.
            self._forget(self.run.keys(log, log.old))
        for key in self._all(log):
            self._waiting.setdefault(key, []).append(refusal.position)

    def _forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.outdated.update(self._waiting.pop(key, ()))

    def _all(self, log: Log) -> list[str]:
        return self.run.keys(log, log.key_values) if log.key else []

    def _concerned(self, log: Log) -> list[str]:
        """The keys that rows have after these changes, and those that they lose."""
        lost = self.run.keys(log, log.old) if log.key and log.moved.any() else []
        return self._all(log) + [lost[at] for at in log.moved.nonzero()[0].tolist()]

    def _whole(self, log: Log) -> Iterator[tuple[str, Position]]:
        """The keys whose rows are known whole, or gone, after a change, and its position, in order; both keys of a move."""
        if not log.key:
            return
        is_whole = ~log.kept
        new, old = self._all(log), self.run.keys(log, log.old) if log.moved.any() else []
        for at in is_whole.nonzero()[0].tolist():
            if log.moved[at]:
                yield old[at], log.position(at)
            yield new[at], log.position(at)

    def letters(self) -> list[Letter]:
        """Of all that was refused."""
        by_run = groupby(self.refused, key=lambda refusal: id(refusal.run))
        return [letter for _, part in by_run for letter in _letters(list(part), self.address)]

    def _of(self, log: Log, letter: OpenLetter) -> list[str]:
        """The keys that a letter is about; without a key in the target nothing can be told of a row."""
        keys = (self.run.key_of(log, key) for key in (letter.key, letter.new_key) if key is not None and log.key)
        return [key for key in keys if key is not None]


def _letters(refused: Sequence[Refusal], address: Address) -> list[Letter]:
    return refused[0].run.letters(refused, address)
