"""The queue against its peers from PyPI, and against the messaging that section 003 of the reference systems describes.

Parts, each on a server of its own with durable commits: `jobs` are jobs that do nothing, of one worker; `load` is the load
test of the original in its four published steps; `pickup` how soon a job begins; `idle` what a waiting worker writes; and
`horizon` a steady load under a transaction that is held open.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.queue import email_load, idle_worker, jobs, pickup_latency, xmin_horizon
from benchmarks.report import Bar, Output, parse_arguments, report

PARTS: Final[Mapping[str, Callable[[bool, Output], list[Bar]]]] = {
    "jobs": jobs.measure,
    "load": email_load.measure,
    "pickup": pickup_latency.measure,
    "idle": idle_worker.measure,
    "horizon": xmin_horizon.measure,
}


def main() -> None:
    quick, parts = parse_arguments(PARTS)
    output = Output()
    # Ratios hold on a busy machine too; figures do not.
    output.figures["load_average_before"] = round(os.getloadavg()[0], 2)
    bars = [bar for part in parts for bar in PARTS[part](quick, output)]
    report("queue", quick, output.figures, bars)


if __name__ == "__main__":
    main()
