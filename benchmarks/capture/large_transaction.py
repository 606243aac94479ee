"""The client of the memory figure: captures and decodes until a row of table `done` comes, then says what it took.

Run by `benchmarks.capture` as a process of its own, so that its peak is nobody else's.
"""

import json
import os
import re
import sys
from pathlib import Path

import numpy

from headwater.capture import Capture, CaptureSettings
from headwater.postgres.replication import decode_columns
from headwater.postgres.types import Types

# Where the server's URL is handed over.
URL_VARIABLE = "BENCHMARK_URL"


def peak_rss_mb() -> float:
    """The most memory that this program had. `getrusage` would count what its parent had when it started it, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def main(slot: str, spill: str, expected: int) -> None:
    url = os.environ[URL_VARIABLE]
    settings = CaptureSettings(url=url, slot=slot, publications=("bench",), spill_directory=Path(spill))
    types, rows, done = Types.builtin(), 0, False
    seen_ids = numpy.zeros(expected + 1, dtype=bool)
    with Capture(settings) as capture:
        while not done:
            batch = next(iter(capture))
            for group in decode_columns(batch, types):
                done = done or group.relation.name == "done"
                if group.relation.name == "t" and group.after is not None:
                    rows += len(group)
                    seen_ids[group.after.column("id").to_numpy()] = True
            if batch.end is not None:
                capture.confirm(batch.end)
        opened = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    seen = {
        "rows": rows,
        "distinct": int(seen_ids.sum()),
        "open_spills": sum(path.startswith(spill) for path in opened),
        "peak_rss_mb": peak_rss_mb(),
    }
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
