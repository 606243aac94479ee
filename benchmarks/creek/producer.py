"""A producer in a process of its own: `headwater run` on a pipeline file for the table, with a NATS sink."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.creek.testbed import PUBLICATION, TABLE, Testbed
from benchmarks.pipeline_process import SOURCE_VARIABLE, TARGET_VARIABLE, PipelineProcess, running
from benchmarks.spark_session import MASTER
from headwater.creek.names import Names

SLOT = "producer"
PATIENCE_SECONDS = 600.0
_LOOK_SECONDS = 0.1


def producer_file(namespace: str) -> str:
    """The table's changes, without the rows that are there already; they are for whoever asks for a snapshot."""
    return f"""\
name = "{SLOT}"

[source]
url = "${{{SOURCE_VARIABLE}}}"
tables = ["{TABLE}"]
publication = "{PUBLICATION}"
snapshot = "never"

[[sinks]]
type = "nats"
url = "${{{TARGET_VARIABLE}}}"
namespace = "{namespace}"

[spark]
master = "{MASTER}"
"""


@contextmanager
def producing(testbed: Testbed, names: Names) -> Iterator[PipelineProcess]:
    urls = {SOURCE_VARIABLE: testbed.bench.server.url, TARGET_VARIABLE: testbed.access.url}
    with TemporaryDirectory() as directory, running(Path(directory), producer_file(names.root), urls) as run:
        yield run


def wait_until(is_true: Callable[[], bool], what: str, run: PipelineProcess) -> None:
    """Wait for what the producer brings about. Looking is work, also for the server, so it is not done too often."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        run.require_alive()
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain for {what}, {PATIENCE_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)
