"""The figures of a worker, as Prometheus reads them."""

import subprocess
import sys
from dataclasses import fields

from prometheus_client import CollectorRegistry

from headwater.queue.counts import Counts
from headwater.queue.metrics import WorkerMetrics


def test_a_worker_that_has_not_begun_has_figures():
    text = WorkerMetrics(Counts()).render().decode()
    assert "headwater_queue_done_total 0.0" in text
    assert "headwater_queue_suspected_duplicates_total 0.0" in text
    assert 'headwater_queue_schedule_to_claim_seconds_bucket{le="+Inf"} 0.0' in text


def test_what_was_counted_is_told_in_a_registry_of_the_application():
    counts, registry = Counts(), CollectorRegistry()
    registry.register(WorkerMetrics(counts))
    counts.done, counts.suspected_duplicates, counts.running, counts.is_database_up = 3, 1, 2, False
    counts.overdue_seconds = 1.5
    for seconds in (0.004, 0.004, 1000.0):
        counts.claim_to_done.note(seconds)
    value = registry.get_sample_value
    assert value("headwater_queue_done_total") == 3
    assert value("headwater_queue_suspected_duplicates_total") == 1
    assert value("headwater_queue_running_jobs") == 2
    assert value("headwater_queue_overdue_seconds") == 1.5
    assert value("headwater_queue_database_up") == 0
    assert value("headwater_queue_claim_to_done_seconds_bucket", {"le": "0.005"}) == 2
    assert value("headwater_queue_claim_to_done_seconds_bucket", {"le": "300.0"}) == 2
    assert value("headwater_queue_claim_to_done_seconds_bucket", {"le": "+Inf"}) == 3
    assert value("headwater_queue_claim_to_done_seconds_count") == 3
    assert value("headwater_queue_claim_to_done_seconds_sum") == 1000.008


def test_nothing_that_is_counted_is_left_out():
    text = WorkerMetrics(Counts()).render().decode()
    for one in fields(Counts):
        assert f"headwater_queue_{one.name.removeprefix('is_')}" in text


def test_without_the_client_of_prometheus_the_extra_is_named():
    code = "import sys; sys.modules['prometheus_client'] = None; import headwater.queue.metrics"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "SettingsError: prometheus_client is needed" in done.stderr
    assert "run `pip install 'headwater[queue]'`" in done.stderr
