"""The figures of a relay, as Prometheus reads them."""

import subprocess
import sys

from prometheus_client import CollectorRegistry

from headwater.outbox import OutboxRelay
from headwater.outbox.relay.metrics import RelayMetrics


def made():
    return OutboxRelay("postgresql://db.example.com/shop", "amqp://broker.example.com")


def test_a_relay_that_has_not_begun_has_figures_but_for_what_is_not_known():
    text = RelayMetrics(made()).render().decode()
    assert "headwater_relay_published_total 0.0" in text
    assert 'headwater_relay_queue_events{queue="intake"} 0.0' in text
    assert "oldest_unpublished_seconds" not in text


def test_what_was_counted_is_told_in_a_registry_of_the_application():
    relay, registry = made(), CollectorRegistry()
    registry.register(RelayMetrics(relay))
    relay.counts.published, relay.counts.oldest_seconds, relay.counts.is_database_up = 3, 1.5, True
    for seconds in (0.004, 0.004, 100.0):
        relay.counts.confirmed(seconds)
    assert registry.get_sample_value("headwater_relay_published_total") == 3
    assert registry.get_sample_value("headwater_relay_oldest_unpublished_seconds") == 1.5
    assert registry.get_sample_value("headwater_relay_broker_up") == 0
    assert registry.get_sample_value("headwater_relay_database_up") == 1
    assert registry.get_sample_value("headwater_relay_confirm_seconds_bucket", {"le": "0.005"}) == 2
    assert registry.get_sample_value("headwater_relay_confirm_seconds_bucket", {"le": "+Inf"}) == 3
    assert registry.get_sample_value("headwater_relay_confirm_seconds_sum") == 100.008


def test_without_the_client_of_prometheus_the_extra_is_named():
    code = "import sys; sys.modules['prometheus_client'] = None; import headwater.outbox.relay.metrics"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "SettingsError: prometheus_client is needed" in done.stderr
    assert "run `pip install 'headwater[relay]'`" in done.stderr
