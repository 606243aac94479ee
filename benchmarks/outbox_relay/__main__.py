"""How fast events leave an application by the relay that runs inside of it, and how soon after their commit.

Parts, each on servers of its own: `burst` is 50,000 transactions as fast as 16 at a time go, against the reference and
against the broker alone; `requests` the same through simulated requests; `latency` a steady rate of single events; `faults`
counts what each arm loses and repeats when the broker refuses some messages. Arms take turns, and a ratio is the median of
the turns' ratios. Events have about 100 bytes; commits, messages and queues are durable.
"""

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.outbox_relay import burst, faults, latency, simulated_requests
from benchmarks.report import Bar, Output, parse_arguments, report

PARTS: Final[Mapping[str, Callable[[bool, Output], list[Bar]]]] = {
    "burst": burst.measure,
    "requests": simulated_requests.measure,
    "latency": latency.measure,
    "faults": faults.measure,
}


def main() -> None:
    quick, parts = parse_arguments(PARTS)
    output = Output()
    bars = [bar for part in parts for bar in PARTS[part](quick, output)]
    report("outbox_relay", quick, output.figures, bars)


if __name__ == "__main__":
    main()
