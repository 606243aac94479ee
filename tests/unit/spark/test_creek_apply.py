"""What a consumer tells monitors."""

import logging
import urllib.error
import urllib.request

import pytest

from headwater.creek.consumer.mapping import TableMapping
from headwater.errors import SettingsError
from headwater.spark.creek_apply.counts import Counts
from headwater.spark.creek_apply.metrics import MetricsServer, render
from headwater.spark.monitor.creek import LogCounter
from headwater.spark.sinks.sink import Written
from headwater.spark.sources.creek.offset import Mark, Step

TABLE = TableMapping.parse('shop.public."say ""hi""":copy.orders')


@pytest.fixture
def counts():
    counts = Counts()
    counts.add(Step(Mark(0), Mark(5), ((TABLE, 1),), changes={str(TABLE): 5}), Written(4, 1, 0))
    counts.add(Step(Mark(5), Mark(9), ((TABLE, 1),), changes={str(TABLE): 4}), Written(0, 4, 0))
    counts.add_snapshot(TABLE, Written(100, 0, 2))
    return counts


def test_metrics_have_creeks_names(counts):
    logged = LogCounter()
    logged.emit(logging.makeLogRecord({"levelname": "WARNING"}))
    lines = render(counts, logged).decode().splitlines()
    labels = 'creek_pg_target="copy.orders",creek_pg_source="shop.public.\\"say \\"\\"hi\\"\\"\\""'
    assert f'creek_consumer_pg_inserts{{creek_stream_type="wal",{labels}}} 5' in lines
    assert f'creek_consumer_pg_inserts{{creek_stream_type="snap",{labels}}} 100' in lines
    assert "# TYPE creek_consumer_pg_inserts counter" in lines
    assert 'log_messages_total{level="warning"} 1' in lines
    assert "headwater_creek_skipped 5" in lines
    assert "headwater_creek_dead_letters 2" in lines


def test_metrics_are_answered_on_a_port(counts):
    with MetricsServer(0, counts, LogCounter()) as server:
        place = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{place}/metrics") as answer:
            assert b"creek_consumer_pg_inserts" in answer.read()
        with urllib.request.urlopen(f"{place}/health") as answer:
            assert answer.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{place}/nothing")
        with pytest.raises(SettingsError, match="--prometheus-port"):
            MetricsServer(server.port, counts, LogCounter())
