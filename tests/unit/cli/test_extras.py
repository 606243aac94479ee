"""What works without the extras that not everybody has."""

import subprocess
import sys

_WITHOUT_BROKERS = """
import sys
for name in ("nats", "nacl", "fastavro", "pika", "azure.servicebus", "confluent_kafka"):
    sys.modules[name] = None
import typer
from headwater.cli.app import app
commands = typer.main.get_command(app).commands
for group in (commands, commands["outbox"].commands):
    list(group.values())
import headwater.spark.pipeline
import headwater.spark.sinks.build
import headwater.spark.sources
"""


def test_pipelines_load_without_any_broker():
    done = subprocess.run([sys.executable, "-c", _WITHOUT_BROKERS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
