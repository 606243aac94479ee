"""The parent of Spark's Python workers: PySpark's own, with two differences.

A worker collects garbage after each task, which with pandas and pyarrow loaded took some 40 ms; what is there after its
first task is there to stay, and is left out of that. And a worker whose Java has hung up ends without printing a traceback.

It stands apart from `headwater.spark`, which loads pyarrow: that starts threads, and this process forks.
"""

import gc
import os
import socket

from pyspark import daemon

_serve = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one task, as PySpark does."""
    try:
        code: int = _serve(sock, authenticated)
    except BrokenPipeError:
        os._exit(1)
    if not gc.get_freeze_count():
        gc.freeze()
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
