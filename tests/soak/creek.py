"""A Creek producer under load: killed at drawn failpoints, then at drawn moments, as are its servers.

Committed are changes; lost are entries and versions of accounts that the stream lacks. The stream knows what it has stored
already, so nothing is allowed to be repeated.
"""

from collections.abc import Iterator
from random import Random

from tests.soak.story import Counts, Round
from tests.support.failpoints import Failpoints
from tests.support.stories.creek_producer_process import Producer, producing
from tests.support.stories.creek_story import Load, Stage, compare, staged

_SNAPSHOT = "creek.snapshot_published"
_POINTS = ("batch.begin", "sink.written", _SNAPSHOT)
_VICTIMS = ("producer", "nats", "source")


def run(round: Round) -> Counts:
    chance = round.random
    # A producer ends at the first of these points, and the next one at the second.
    points = [(name, 1 if name == _SNAPSHOT else chance.randint(2, 8)) for name in chance.sample(_POINTS, 2)]
    last = f"broker_sink.acknowledged=kill@{chance.randint(2, 8)}"
    moments = [(chance.choice(_VICTIMS), chance.randint(50, 600)) for _ in range(3)]
    load = Random(chance.random())
    armed = [Failpoints(round.directory, f"{name}=kill@{hit}") for name, hit in points]
    armed.append(Failpoints(round.directory, last))
    with staged() as stage, producing(round.directory, {**stage.environment, **armed[0].environment}) as producer:
        stage.wait_for_slot(producer)
        with Load(stage.source.url, load):
            for (name, _), following in zip(points, armed[1:], strict=True):
                if name == _SNAPSHOT:
                    stage.wait_for_more(producer, 1)
                    stage.ask_for_snapshot()
                producer.wait_for_kill()
                producer.start({**stage.environment, **following.environment})
            for victim, more in moments:
                stage.wait_for_more(producer, more)
                _kill(victim, stage, producer)
            stage.wait_for_more(producer, 100)
            armed[-1].wait_for("broker_sink.acknowledged")
        outcome = compare(stage)
        assert producer.stop() == 0, producer.log[-3000:]
    assert outcome.unknown == 0, outcome
    return Counts(
        committed=outcome.committed,
        lost=outcome.lost + outcome.gaps,
        repeated=outcome.repeated,
        out_of_order=outcome.out_of_order,
        faults=tuple(_named(points, last, moments)),
    )


def _kill(victim: str, stage: Stage, producer: Producer) -> None:
    if victim == "producer":
        producer.kill()
    else:
        stage.kill(victim)


def _named(points: list[tuple[str, int]], last: str, moments: list[tuple[str, int]]) -> Iterator[str]:
    yield from (f"{name}@{hit}" for name, hit in points)
    yield last.replace("=kill", "")
    yield from (f"{victim}+{more}" for victim, more in moments)
