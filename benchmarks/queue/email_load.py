"""The load test of section 003: all messages in one call, a consumer that listens already, a sender that does nothing.

Producer is the time of the call. Consumer is that from the first notification to the last durable mark; of ours it begins
even before the commit, which it does not see. Pools are warmed by 50 trivial queries at once; our consumers, who have
connections of their own, by 50 messages. Arms take turns, and a ratio is the median of the rounds' ratios. At the end ours
is traced once, with the run and the services in each span.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast
from uuid import uuid4

from benchmarks.queue import emails, reference_messaging, statements
from benchmarks.queue.reference_messaging import STEPS, WARM_QUERIES, Consumed, Produced, Step
from benchmarks.queue.span_counting import CONSUMER, PRODUCER, Spans
from benchmarks.queue.testbed import Testbed, start_testbed
from benchmarks.report import Bar, Output
from headwater.postgres.statements import execute_sync
from headwater.queue import prepare_queue

CONSUMERS: Final = (1, 2, 4, 8)
# Until all consumers are connected and idle.
_SETTLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The first three steps get the fewer messages, the last step and ours the fewer and the more."""

    few: int = 5_000
    many: int = 20_000
    history: int = 1_000_000
    rounds: int = 3


QUICK = Sizes(few=700, many=3_000, history=50_000, rounds=1)


@dataclass(frozen=True, slots=True)
class Turn:
    """Messages per second; `by_chunks` is how the original counts."""

    produced: float
    consumed: float
    by_chunks: float = float("nan")


Turns = dict[str, list[Turn]]


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    turns: Turns = {}
    with start_testbed(output, helpers=1 + max(CONSUMERS)) as testbed:
        prepare_queue(testbed.connection)
        ours(testbed, sizes.few, consumers=max(CONSUMERS))
        for _ in range(sizes.rounds):
            for name, take in plan(testbed, sizes):
                turns.setdefault(name, []).append(take())
        # Whoever was traced once always is.
        turns["ours_traced"] = [ours(testbed, sizes.many, traced_as=str(uuid4()))]
    tell(output, turns)
    last, mine = f"{STEPS[-1].name}_many", "ours_many"
    return [
        Bar("consumer_over_reference", over(turns[mine], turns[last], "consumed"), at_least=4.0),
        Bar("producer_over_reference", over(turns[mine], turns[last], "produced"), at_least=2.0),
        Bar("history_ratio", over(turns["ours_history"], turns[mine], "consumed"), at_least=0.9),
    ]


def plan(testbed: Testbed, sizes: Sizes) -> list[tuple[str, Callable[[], Turn]]]:
    """The turns of a round, by their names."""
    last = STEPS[-1]
    return [
        *((step.name, partial(referred, testbed, step, sizes.few)) for step in STEPS),
        ("ours", partial(ours, testbed, sizes.few)),
        (f"{last.name}_many", partial(referred, testbed, last, sizes.many)),
        ("ours_many", partial(ours, testbed, sizes.many)),
        ("ours_history", partial(ours, testbed, sizes.many, history=sizes.history)),
        *((f"ours_{count}_consumers", partial(ours, testbed, sizes.many, consumers=count)) for count in CONSUMERS[1:]),
    ]


def over(first: Sequence[Turn], second: Sequence[Turn], what: str) -> float:
    """Of one arm over that of another, round by round."""
    ratios = [float(getattr(one, what) / getattr(other, what)) for one, other in zip(first, second, strict=True)]
    return round(statistics.median(ratios), 3)


def tell(output: Output, turns: Turns) -> None:
    for name, every in turns.items():
        output.figures[f"load_{name}_producer_per_s"] = round(statistics.median(turn.produced for turn in every))
        output.figures[f"load_{name}_consumer_per_s"] = round(statistics.median(turn.consumed for turn in every))
        if name in {step.name for step in STEPS}:
            output.figures[f"load_{name}_chunks_per_s"] = round(statistics.median(turn.by_chunks for turn in every))


def referred(testbed: Testbed, step: Step, messages: int) -> Turn:
    with testbed.output.console.status(f"{messages:,} messages by {step.name} of the reference"):
        execute_sync(testbed.connection, statements.create_reference())
        testbed.settle()
        producer, consumer = testbed.helpers[:2]
        consumer.begin(reference_messaging.Consume(step, testbed.url, messages))
        testbed.wait_until_ready([consumer])
        produced = cast("Produced", producer.run(reference_messaging.Schedule(step, testbed.url, messages)))
        consumed = cast("Consumed", consumer.result())
    assert not testbed.number(statements.count_emails()), "not all messages of the reference were marked"
    return Turn(messages / produced.seconds, messages / (consumed.ended - consumed.began), messages / consumed.chunk_seconds)


def ours(testbed: Testbed, messages: int, *, consumers: int = 1, history: int = 0, traced_as: str = "") -> Turn:
    with testbed.output.console.status(f"{messages:,} messages by ours, {consumers} consumers, {history:,} rows of history"):
        execute_sync(testbed.connection, statements.empty_ours())
        if history:
            execute_sync(testbed.connection, statements.write_history(history, json.dumps(emails.MESSAGE)))
        testbed.settle()
        producer, working = testbed.helpers[0], testbed.helpers[1 : 1 + consumers]

        def handled() -> int:
            return sum(one.board.handled.value for one in working)

        for one in working:
            one.begin(emails.Consume(testbed.url, traced_as))
        testbed.wait_until_ready(working)
        producer.run(emails.Schedule(testbed.url, WARM_QUERIES))
        testbed.wait_until(lambda: handled() >= WARM_QUERIES, "the consumers' first messages")
        time.sleep(_SETTLE_SECONDS)
        produced = cast("Produced", producer.run(emails.Schedule(testbed.url, messages, traced_as)))
        wanted = messages + WARM_QUERIES
        testbed.wait_until(
            lambda: handled() >= wanted and not testbed.number(statements.count_ours()), "the last mark", 300.0
        )
        seconds = time.time() - produced.committed_at
        spans = sum((cast("Spans", one.finish()) for one in working), produced.spans)
    assert testbed.number(statements.count_done()) == wanted + history, "not all messages of ours were marked as done"
    if traced_as:
        require_spans(spans, traced_as, messages)
    return Turn(messages / produced.seconds, messages / seconds)


def require_spans(spans: Spans, run: str, messages: int) -> None:
    """Raises unless there is one of the call, and for each message one of each step, of the right service and run."""
    wanted = {(PRODUCER, run, "enqueue"): 1}
    wanted |= {(CONSUMER, run, name): messages for name in ("claim", f"process {emails.SEND}", "settle")}
    assert spans == wanted, f"spans are {dict(spans)}, and {wanted} are wanted"
