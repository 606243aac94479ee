"""The parent of Spark's Python workers: PySpark's own, with three differences.

It loads the modules of a task before it forks, so that a worker starts in some milliseconds instead of a second. A worker
collects garbage after each task, which with pandas and pyarrow loaded took some 40 ms; objects that exist after its first
task stay, and are left out of that. And a worker whose Java has hung up ends without printing a traceback.

PySpark loads these modules after the fork, because numpy and pyarrow start threads when they are loaded, and a fork with
threads is unsafe. Both can be told not to.
"""

import gc
import os
import socket
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

from pyspark import daemon

_serve = daemon.worker

# numpy starts threads for OpenBLAS, unless there is to be one of them, which Spark sets OMP_NUM_THREADS to as well; pyarrow
# starts one for jemalloc, which it does not use.
_NO_THREADS: Final[Mapping[str, str]] = MappingProxyType(
    {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
)
# The modules of a task from a slot to PostgreSQL, with all that those load; tasks of other kinds share most of them.
_PRELOADED: Final = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "headwater.spark.sources.changes",
    "headwater.spark.sinks.postgres.task",
)


def preload() -> None:
    """Load the modules of a task, without starting a thread; load none if the environment asks for threads."""
    if any(os.environ.setdefault(name, value) != value for name, value in _NO_THREADS.items()):
        return
    for name in _PRELOADED:
        import_module(name)
    # pyarrow loads pandas with the first array that it makes.
    import_module("pyarrow").array([0])
    # Workers would else have the same random numbers. Python's own generator is seeded in each fork, that of numpy is not.
    os.register_at_fork(after_in_child=import_module("numpy.random").seed)
    # A collection in a worker would write to all objects, and so copy the memory that the workers share.
    gc.freeze()


def serve_first(sock: socket.socket, authenticated: bool) -> int:
    """Serve the first task of a worker, as PySpark does, and leave the others to `serve`."""
    code = serve(sock, authenticated)
    gc.freeze()
    # Whether that was done cannot be asked for at each task: Python counts all that is frozen, which takes 10 ms.
    daemon.worker = serve
    return code


def serve(sock: socket.socket, authenticated: bool) -> int:
    try:
        code: int = _serve(sock, authenticated)
    except BrokenPipeError:
        os._exit(1)
    return code


if __name__ == "__main__":
    preload()
    daemon.worker = serve_first
    daemon.manager()
