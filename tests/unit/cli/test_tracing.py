"""Which exporters the OTEL_* variables ask for, and that a collector which does not answer holds nobody up."""

import logging
import os
import subprocess
import sys
from threading import Event
from unittest.mock import Mock

import pytest

from headwater.cli import tracing
from headwater.cli.tracing import exporters


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, []),
        ({"OTEL_SERVICE_NAME": "x"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, ["otlp"]),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ["otlp"]),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp", "console"]),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, []),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, []),
    ],
)
def test_spans_are_sent_where_the_variables_say(variables, wanted, caplog):
    assert exporters(variables) == wanted
    assert caplog.records == []


@pytest.mark.parametrize(
    ("variables", "wanted", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin,otlp"}, ["otlp"], "'zipkin', which is not known here; use otlp, console or none"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ["otlp"],
            "by http/protobuf, and not by grpc",
        ),
    ],
)
def test_what_is_not_known_is_said(variables, wanted, said, caplog):
    assert exporters(variables) == wanted
    assert said in caplog.text


def test_a_collector_that_does_not_answer_holds_nobody_up(monkeypatch, caplog):
    monkeypatch.setattr(tracing, "_FLUSH_SECONDS", 0.01)
    answered = Event()
    with caplog.at_level(logging.WARNING):
        tracing._flush(Mock(shutdown=answered.wait))
    answered.set()
    assert "did not take the last spans within 0.01 s, and they are lost" in caplog.text


def run(program):
    """In a process of its own, since a process can set up tracing once."""
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_without_the_sdk_it_is_said_what_to_install_and_the_rest_goes_on():
    done = run("""
import logging, sys
logging.basicConfig()
sys.modules["opentelemetry.sdk.trace"] = None
from headwater.cli.tracing import tracing
with tracing():
    print("went on")
""")
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert "opentelemetry.sdk.trace is not installed; run `pip install 'headwater[traces]'`" in done.stderr


def test_an_application_that_is_traced_already_keeps_its_own():
    done = run("""
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from headwater.cli.tracing import tracing
mine = TracerProvider()
trace.set_tracer_provider(mine)
with tracing():
    print(trace.get_tracer_provider() is mine)
print(trace.get_tracer("x").start_span("y").is_recording())
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nTrue\n", "")
