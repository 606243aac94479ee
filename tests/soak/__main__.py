"""`python -m tests.soak [--minutes 30] [--seed N] [--story NAME]`: rounds of stories until the time is over.

Each round prints a line: story, seed, committed, lost, repeated, out of order, the variant that was drawn, and the
faults in their order. The first
violation ends the soak with exit code 1 and the command that replays it. Without `--seed` the first seed is drawn; the
seeds of later rounds count up from there, and the stories take turns.
"""

import argparse
import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from tests.soak.story import Counts, Round, Story
from tests.support.servers.embedded import shared_place

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

T = TypeVar("T", int, float)


def main(arguments: Sequence[str]) -> int:
    try:
        given = _parse(arguments)
    except ValueError as exc:
        print(f"make soak: {exc}", file=sys.stderr)
        return _USAGE
    # Ends the servers of a round, as the end of the round would.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"soak: {given.minutes:g} minutes, first seed {given.seed}, stories {', '.join(given.stories)}")
    print(_HEADER, flush=True)
    return _soak(given.stories, given.seed, given.minutes * 60)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", default="30", help="how long; a round that has begun is finished (default 30)")
    parser.add_argument("--seed", help="the seed of the first round (default: drawn)")
    parser.add_argument("--story", help=f"only this one of {', '.join(STORIES)} (default: all in turn)")
    given = parser.parse_args(arguments)
    given.minutes = _number("MINUTES", given.minutes, float)
    if given.minutes <= 0:
        raise ValueError(f"MINUTES={given.minutes:g} is no time; give more than 0")
    given.seed = random.randrange(2**31) if given.seed is None else _number("SEED", given.seed, int)
    if given.story is not None and given.story not in STORIES:
        raise ValueError(f"there is no STORY={given.story}; there are {', '.join(STORIES)}")
    given.stories = STORIES if given.story is None else (given.story,)
    return given


def _number(name: str, text: str, kind: Callable[[str], T]) -> T:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name}={text} is not a number; give one such as {name}=30") from None


def _soak(names: Sequence[str], seed: int, seconds: float) -> int:
    stories: Mapping[str, Story] = {name: import_module(f"tests.soak.{name}").run for name in names}
    ends_at = time.monotonic() + seconds
    totals: list[Counts] = []
    for number in itertools.count():
        name = names[number % len(names)]
        counts = _play(name, stories[name], seed + number)
        if counts is None or counts.is_violation:
            print(f"violation: replay it with `make soak MINUTES=1 STORY={name} SEED={seed + number}`")
            return _VIOLATION
        totals.append(counts)
        if time.monotonic() >= ends_at:
            break
    print(
        f"{len(totals)} rounds: committed {sum(one.committed for one in totals)}, lost 0, "
        f"repeated {sum(one.repeated for one in totals)} of at most {sum(one.allowed_repeats for one in totals)} allowed, "
        f"out of order 0, faults {sum(len(one.faults) for one in totals)}"
    )
    return 0


def _play(name: str, story: Story, seed: int) -> Counts | None:
    """The counts of one round; None if the story failed before it could count."""
    # Servers run as users of their own, who must be able to pass.
    directory = Path(tempfile.mkdtemp(prefix=f"headwater-soak-{name}-", dir=shared_place()))
    directory.chmod(0o711)
    began = time.monotonic()
    try:
        counts = story(Round(name, seed, directory))
    except Exception:  # noqa: BLE001 - whatever a story ends with, it is the outcome of its seed
        traceback.print_exc()
        print(f"{name:<10} {seed:>10} {time.monotonic() - began:>8.1f}  failed; its logs are in {directory}", flush=True)
        return None
    print(
        f"{name:<10} {seed:>10} {time.monotonic() - began:>8.1f} {counts.committed:>10} {counts.lost:>6} "
        f"{counts.repeated:>9} {counts.out_of_order:>9}  {' '.join((*counts.variant, *counts.faults))}",
        flush=True,
    )
    if not counts.is_violation:
        shutil.rmtree(directory)
    return counts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
