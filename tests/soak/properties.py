"""The property tests with more examples, and others in each round: the seed is Hypothesis' own.

Committed is how many properties were tried, and lost how many did not hold. Pytest's report is in the round's directory.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests.soak.story import Counts, Round

_ROOT = Path(__file__).parents[2]
# Those whose examples are many files long; one of them takes a minute with 400 examples.
_FILES_A_ROUND = 2


def property_files() -> list[str]:
    """The files of tests that have a property, in the order of their paths."""
    files = sorted((_ROOT / "tests" / "unit").rglob("test_*.py"))
    return [str(path.relative_to(_ROOT)) for path in files if "@given(" in path.read_text()]


def run(round: Round) -> Counts:
    chosen = round.random.sample(property_files(), _FILES_A_ROUND)
    options = ["-q", "-n0", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout=1800"]
    options += ["--hypothesis-profile=soak", f"--hypothesis-seed={round.seed}"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *chosen], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    (round.directory / "report").write_text(ended.stdout + ended.stderr)
    passed, failed = (
        int(found[1]) if (found := re.search(rf"(\d+) {word}", ended.stdout)) else 0 for word in ("passed", "failed")
    )
    # An error outside of a test, as in a fixture, is no example that failed.
    if ended.returncode != (1 if failed else 0) or re.search(r"\d+ errors?\b", ended.stdout):
        raise AssertionError(ended.stdout + ended.stderr)
    return Counts(passed + failed, failed, variant=tuple(Path(name).stem for name in chosen))
