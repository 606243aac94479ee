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
    daemon.worker = serve_first
    daemon.manager()
