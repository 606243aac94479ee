"""Topics against the log that section 002 of the reference systems describes, on one server, with durable commits.

Parts, each on a server of its own: `small` and `large` are the shapes P1 and P2 of the original, stepped up to what each arm
keeps up with, and P1 again at the same offered load; `writers` are writers alone; `idle` is what waiting groups write;
`horizon` the throughput under an old transaction; `append` what the ways to append in a transaction cost; `spark` reads a
backlog; and `steady` is half an hour of the same load.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.report import Bar, Output, parse_arguments, report
from benchmarks.topics import append, backlog, idle_groups, steady_load, sustained_load, writers, xmin_horizon

PARTS: Final[Mapping[str, Callable[[bool, Output], list[Bar]]]] = {
    "small": sustained_load.measure_small,
    "large": sustained_load.measure_large,
    "writers": writers.measure,
    "idle": idle_groups.measure,
    "horizon": xmin_horizon.measure,
    "append": append.measure,
    "spark": backlog.measure,
    "steady": steady_load.measure,
}


def main() -> None:
    quick, parts = parse_arguments(PARTS)
    output = Output()
    # Ratios hold on a busy machine too; figures do not.
    output.figures["load_average_before"] = round(os.getloadavg()[0], 2)
    bars = [bar for part in parts for bar in PARTS[part](quick, output)]
    report("topics", quick, output.figures, bars)


if __name__ == "__main__":
    main()
