"""`make soak [MINUTES=30] [SEED=N] [STORY=NAME]`: rounds of stories until the time is over.

Each round prints a line: story, seed, committed, lost, repeated, out of order, the variant that was drawn, the faults in
their order, and in parentheses what depended on the machine. The first violation ends the soak with exit code 1 and the
command that replays it; a round that has committed nothing is one, too. Without SEED the first seed is drawn; the seeds of
later rounds count up from there, and the stories take turns. The three are variables of the environment: make passes those
of its command line on.
"""

import itertools
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TypeVar

import psutil
import pytest

from headwater.failpoints import VARIABLE
from tests.soak.story import Counts, Round, Story
from tests.support.servers.embedded import shared_place
from tests.support.servers.quick_java import ensure_archive, quick_java

# In the order of their turns; each is a module with a function `run`.
STORIES = (
    "crash",
    "snapshot",
    "slot_loss",
    "takeover",
    "outbox",
    "relay",
    "creek",
    "topic",
    "queue",
    "mutations",
    "properties",
)
_HEADER = (
    f"{'story':<10} {'seed':>10} {'seconds':>8} {'committed':>10} {'lost':>6} {'repeated':>9} {'disorder':>9}  "
    "variant and faults"
)
_USAGE, _VIOLATION = 2, 1
_KINDS = MappingProxyType({int: ("a whole number", 7), float: ("a number", 30)})

T = TypeVar("T", int, float)


@dataclass(frozen=True)
class SoakSettings:
    """How long to go on, from which seed, with which stories."""

    minutes: float
    seed: int
    stories: Sequence[str]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "SoakSettings":
        """From variables of the environment; raises ValueError with one clear sentence."""
        minutes = _number("MINUTES", given.get("MINUTES") or "30", float)
        if not 0 < minutes < math.inf:
            raise ValueError(f"MINUTES={given['MINUTES']} is no time; give a finite number above 0")
        seed = _number("SEED", given["SEED"], int) if given.get("SEED") else random.randrange(2**31)
        story = given.get("STORY")
        if story and story not in STORIES:
            raise ValueError(f"there is no STORY={story}; there are {', '.join(STORIES)}")
        if given.get(VARIABLE):
            raise ValueError(f"{VARIABLE} is set; unset it, since each round arms failpoints of its own")
        return cls(minutes, seed, (story,) if story else STORIES)


def main() -> int:
    if sys.argv[1:]:
        print("make soak: there are no arguments; set MINUTES, SEED and STORY as variables", file=sys.stderr)
        return _USAGE
    try:
        given = SoakSettings.parse(os.environ)
    except ValueError as exc:
        print(f"make soak: {exc}", file=sys.stderr)
        return _USAGE
    # All of them end the servers of a round, as the end of the round would.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    sys.unraisablehook = _stop_again
    print(f"soak: {given.minutes:g} minutes, first seed {given.seed}, stories {', '.join(given.stories)}")
    print(_HEADER, flush=True)
    return _soak(given.stories, given.seed, given.minutes * 60)


class _Stopped(KeyboardInterrupt):
    """By a signal. Hypothesis would take the end of the process for an input that fails."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _stop(number: int, _frame: FrameType | None) -> None:
    raise _Stopped(number)


def _stop_again(dropped: "sys.UnraisableHookArgs") -> None:
    """Repeat a signal that came in a callback of garbage collection or the like: Python drops whatever those raise."""
    if isinstance(dropped.exc_value, _Stopped):
        threading.Thread(target=_repeat, args=[dropped.exc_value.number], daemon=True).start()
    else:
        sys.__unraisablehook__(dropped)


def _repeat(number: int) -> None:
    """Send the signal to the main thread once that has left the hook, in which its exception would be dropped for good.

    In another callback it would only come here again.
    """
    main = threading.main_thread().ident
    assert main is not None
    while any(frame.f_code is _stop_again.__code__ for frame, _ in traceback.walk_stack(sys._current_frames()[main])):
        time.sleep(0.01)
    signal.pthread_kill(main, number)


def _number(name: str, text: str, kind: type[T]) -> T:
    try:
        return kind(text)
    except ValueError:
        what, example = _KINDS[kind]
        raise ValueError(f"{name}={text} is not {what}; give one such as {name}={example}") from None


def _soak(names: Sequence[str], seed: int, seconds: float) -> int:
    ends_at = time.monotonic() + seconds
    totals: list[Counts] = []
    try:
        ensure_archive()
        stories: Mapping[str, Story] = {name: import_module(f"tests.soak.{name}").run for name in names}
        for number in itertools.count():
            name = names[number % len(names)]
            try:
                counts = _play(name, stories[name], seed + number)
            except pytest.skip.Exception as missing:
                print(f"make soak: {name} cannot be run: {missing}", file=sys.stderr)
                return _USAGE
            if counts is None or counts.is_violation:
                print(f"violation: replay it with `make soak MINUTES=1 STORY={name} SEED={seed + number}`")
                return _VIOLATION
            totals.append(counts)
            if time.monotonic() >= ends_at:
                break
    except _Stopped as stopped:
        print(f"interrupted in round {len(totals) + 1}; before that: {_sum(totals)}")
        return 128 + stopped.number
    print(_sum(totals))
    return 0


def _sum(rounds: Sequence[Counts]) -> str:
    """Add up rounds without a violation, as a line."""
    return (
        f"{len(rounds)} rounds: committed {sum(one.committed for one in rounds)}, lost 0, "
        f"repeated {sum(one.repeated for one in rounds)} of at most {sum(one.allowed_repeats for one in rounds)} allowed, "
        f"out of order 0, faults {sum(len(one.faults) for one in rounds)}"
    )


def _play(name: str, story: Story, seed: int) -> Counts | None:
    """The counts of one round; None if the story failed before it could count."""
    directory = Path(shared_place(), f"headwater-soak-{name}-{seed}-{os.getpid()}")
    began = time.monotonic()
    try:
        # Servers run as users of their own, who must be able to pass.
        directory.mkdir(mode=0o711)
        # Processes that are killed leave their temporary files, which go with it.
        os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
        os.environ["JAVA_HOME"] = str(quick_java(directory))
        counts = story(Round(name, seed, directory))
        print(
            f"{name:<10} {seed:>10} {time.monotonic() - began:>8.1f} {counts.committed:>10} {counts.lost:>6} "
            f"{counts.repeated:>9} {counts.out_of_order:>9}  {counts}",
            flush=True,
        )
        if counts.is_violation:
            print(f"its logs are in {directory}")
        else:
            shutil.rmtree(directory)
    except Exception:  # noqa: BLE001 - whatever a story ends with, it is the outcome of its seed
        traceback.print_exc()
        print(f"{name:<10} {seed:>10} {time.monotonic() - began:>8.1f}  failed; its logs are in {directory}", flush=True)
        return None
    except (_Stopped, pytest.skip.Exception):
        _end_processes(directory)
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return counts


def _end_processes(directory: Path) -> None:
    """Kill what is left of a story that was interrupted.

    A Java that is still starting when its driver is killed would look in vain for a file of the directory, and stay.
    """
    left = [process for process in psutil.process_iter() if _is_of(process, directory)]
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=10)


def _is_of(process: psutil.Process, directory: Path) -> bool:
    with suppress(psutil.Error):
        return process.pid != os.getpid() and process.environ().get("TMPDIR") == str(directory)
    return False


if __name__ == "__main__":
    sys.exit(main())
