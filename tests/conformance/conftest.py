"""What suites of sinks share: each sink with a target to look into, and runs of it. A suite has a `source` of its own."""

import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.spark.settings import Encoding
from headwater.spark.shape import Shape
from headwater.spark.sinks import Sink, Written
from tests.conformance.sink_frames import Delivery
from tests.conformance.sink_targets import (
    KEYS,
    ConsoleTarget,
    NatsTarget,
    NoopTarget,
    ParquetTarget,
    PostgresTarget,
    Target,
)
from tests.support.servers.embedded import fresh_database

TARGETS = ("postgres", "parquet", "console", "noop", "nats-creek", "nats-json")


@pytest.fixture(params=TARGETS)
def target(request, tmp_path, capfdbinary, postgres18, source, database):
    if request.param.startswith("nats"):
        access = NatsAccess(url=request.getfixturevalue("nats").url)
        yield NatsTarget(source[0], access, database, Encoding(request.param.removeprefix("nats-")))
    elif request.param == "postgres":
        with fresh_database(postgres18.url) as url:
            yield PostgresTarget(source[0], url, database, KEYS)
    else:
        yield of_kind(request.param, tmp_path, capfdbinary, database)


def of_kind(kind, tmp_path, capfdbinary, database) -> Target:
    match kind:
        case "parquet":
            return ParquetTarget(tmp_path / "files", database)
        case "console":
            return ConsoleTarget(lambda: capfdbinary.readouterr().out.decode(), database)
        case _:
            return NoopTarget()


@pytest.fixture
def opened(target):
    """Sinks of the target, each that of a new run, which ends the run before."""
    runs: list[Sink] = []

    def run():
        for sink in runs:
            sink.close()
        sink = target.build()
        sink.open()
        runs.append(sink)
        return sink

    yield run
    for sink in runs:
        sink.close()


@pytest.fixture
def write(spark, target):
    def deliver(sink: Sink, delivery: Delivery, shape: Shape = Shape.WIRE) -> Written:
        if shape is Shape.ENVELOPE and not target.takes_envelopes:
            pytest.skip("this sink takes no changes that came through a transform")
        batch = delivery.wire(spark) if shape is Shape.WIRE else delivery.envelopes(spark)
        return sink.write(batch, shape, delivery.span)

    return deliver
