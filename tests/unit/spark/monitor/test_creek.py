"""Creek's metric names, as its dashboards ask for them."""

import logging
from unittest.mock import Mock

from prometheus_client.parser import text_string_to_metric_families

from headwater.model import Lsn, Position
from headwater.spark.monitor import CreekMetrics, LogCounter, reads_of
from headwater.spark.monitor.watch import Watch
from headwater.spark.reporter import Reporter
from headwater.spark.state.progress import Progress
from headwater.spark.state.report import Report


def metrics(position=None, lag_bytes=None, reads=None):
    reporter = Mock(spec=Reporter, report=Mock(spec=Report, position=position))
    watch = Mock(spec=Watch, progress=Mock(spec=Progress, lag=None, lag_bytes=lag_bytes))
    return CreekMetrics(reporter, watch, LogCounter(), lambda: reads or {}, lambda: 2)


def samples(rendered):
    """Line by line: the parser of Prometheus' Python client would put `_total` behind names, as the client does."""
    lines = (line for line in rendered.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_names_and_labels_are_creeks_own():
    reads = reads_of({("c", "public.item"): 3, ("u", "public.item"): 1, ("u_pk", "public.item"): 1, ("t", 'a"b'): 1})
    rendered = metrics(Position(Lsn(255), 0), 1000, reads).render()

    labels = 'creek_producer_pg_reads{{creek_pg_source="{}",creek_producer_pg_op="{}",creek_stream_type="wal"}}'
    assert samples(rendered) == {
        labels.format("public.item", "insert"): 3,
        labels.format("public.item", "update"): 2,
        labels.format(r"a\"b", "truncate"): 1,
        "creek_producer_lsn": 255,
        "creek_producer_pg_behind_bytes": 1000,
        "creek_producer_wal_subscriptions": 2,
    }
    assert b"# TYPE creek_producer_pg_reads counter\n" in rendered
    assert len(list(text_string_to_metric_families(rendered.decode()))) == 6


def test_what_is_not_known_is_left_out():
    found = samples(metrics().render())

    assert set(found) == {"creek_producer_wal_subscriptions"}


def test_lines_of_the_log_are_counted_by_level():
    with LogCounter() as counter:
        logging.getLogger("headwater.test").warning("one")
        logging.getLogger("headwater.test").warning("two")
    logging.getLogger("headwater.test").warning("three")

    assert counter.counts == {"warning": 2}
