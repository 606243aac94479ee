"""A producer in a process of its own: `headwater run` on a pipeline file for the table, with a NATS sink."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.creeks.stage import PUBLICATION, TABLE, Stage
from benchmarks.pipelines.run import SOURCE_VARIABLE, TARGET_VARIABLE, Run, running
from benchmarks.pipelines.session import MASTER
from headwater.creek.names import Names

SLOT = "producer"


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
def producing(stage: Stage, names: Names) -> Iterator[Run]:
    urls = {SOURCE_VARIABLE: stage.bench.server.url, TARGET_VARIABLE: stage.access.url}
    with TemporaryDirectory() as directory, running(Path(directory), producer_file(names.root), urls) as run:
        yield run
