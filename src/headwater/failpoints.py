"""Named points at which a test makes a process crash, lose a connection or wait. Unless they are armed, they do nothing.

`HEADWATER_FAILPOINTS="sink.written=kill, slot.confirm=sleep(0.5)@3"` kills the process at the first hit of one point and
delays it at the third hit of another. `HEADWATER_FAILPOINTS_LOG` names a directory in which the first process to fire a
point leaves a file of its name. A point fires once for that directory, however often processes are started again, and a
test can wait for the file. With such a directory, `batch.begin=kill@2 after slot.confirm` counts the hits of one point
only from when the other has fired, in whichever process.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from headwater.errors import ConnectionLost

VARIABLE: Final = "HEADWATER_FAILPOINTS"
LOG_VARIABLE: Final = "HEADWATER_FAILPOINTS_LOG"

# Where each point is, and in which process of a pipeline.
FAILPOINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batch.begin": "driver: Spark has logged the offsets of a batch, and no task has started",
        "sink.written": "driver: every sink has written a batch, and Spark has not committed it",
        "pipeline.lease_renewal": "driver: before the lease of the pipeline is renewed",
        "source.partitions": "planner: Spark has logged the offsets of a batch, and asks for its partitions",
        "slot.confirm": "planner: before the confirmed LSN is sent to the server",
        "slot.renewal_requested": "driver or planner: a lost slot is to be renewed, and nothing is dropped yet",
        "slot.renewal_recorded": "driver or planner: a new slot is recorded, and not created yet",
        "slot.renewal_created": "driver or planner: a new slot is created, and its start is not recorded",
        "snapshot.opened": "planner: a snapshot is open, and no chunk of it is read",
        "snapshot.loaded": "worker: a chunk is loaded aside, and not committed",
        "snapshot.swap": "driver: all chunks are loaded, and not swapped in",
        "postgres_sink.applied": "worker: the changes of a lane are applied, and not committed",
        "postgres_sink.committed": "worker: the changes of a lane are committed, and Spark does not know it",
        "broker_sink.acknowledged": "worker: the broker has acknowledged messages, and Spark does not know it",
        "outbox.checkpoint_save": "planner: before the checkpoint of an outbox is saved",
        "outbox.recovery_chunk": "planner: the next chunk of a recovery is chosen, and not logged",
        "relay.acknowledged": "the broker has acknowledged events, and their rows are not marked",
        "relay.claimed": "events are claimed from the table, and not sent",
        "relay.lease_renewal": "before the leases of lanes are renewed",
        "topics.delivered": "a batch is handed to the subscriber, and nothing of it is committed",
        "topics.lease_renewal": "before the lease of a group's member is renewed",
        "topics.appended": "a producer's messages are committed, and their senders do not know it",
        "queue.claimed": "jobs are claimed, and no handler has started",
        "queue.handled": "handlers have ended, and their outcomes are not settled",
        "queue.lease_renewal": "before the leases of jobs are renewed",
        "creek.snapshot_opened": "a requested snapshot is open, and no message of it is published",
        "creek.snapshot_published": "the messages of a requested snapshot are published, and its end is not",
    }
)

_TERM = re.compile(
    r"(?P<name>[a-z_.]+)=(?P<action>kill|error|sleep\((?P<seconds>\d{1,5}(\.\d+)?)\))(@(?P<hit>[1-9]\d*))?"
    r"( after (?P<after>[a-z_.]+))?"
)


@dataclass(slots=True)
class _Armed:
    """An action at a point, the hit of it in this process that fires it, and the point that has to have fired before."""

    action: str
    seconds: float
    hit: int
    after: str | None = None
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_due(self) -> bool:
        if self.after is not None and not _has_fired(self.after):
            return False
        with self.lock:
            self.hits += 1
            return self.hits == self.hit


def hit(name: str) -> None:
    """Do what the point is armed for, if it is."""
    if _ARMED:
        _fire(name)


def parse(text: str) -> dict[str, _Armed]:
    """Points by name; raises ValueError with one clear sentence."""
    armed = {}
    for term in filter(None, (term.strip() for term in text.split(","))):
        found = _TERM.fullmatch(term)
        if found is None:
            raise ValueError(
                f"{VARIABLE}: {term!r} is not NAME=kill, NAME=error or NAME=sleep(SECONDS), with @HIT and after NAME if "
                "wanted"
            )
        for name in filter(None, (found["name"], found["after"])):
            if name not in FAILPOINTS:
                raise ValueError(f"{VARIABLE}: there is no failpoint {name!r}; there are {', '.join(FAILPOINTS)}")
        if found["name"] in armed:
            raise ValueError(f"{VARIABLE}: {found['name']} is armed twice; name each point once")
        if found["name"] == found["after"]:
            raise ValueError(f"{VARIABLE}: {term!r} waits for itself, and would never fire")
        action, seconds = found["action"].partition("(")[0], float(found["seconds"] or 0)
        armed[found["name"]] = _Armed(action, seconds, int(found["hit"] or 1), found["after"])
    return armed


def _fire(name: str) -> None:
    point = _ARMED.get(name)
    if point is None or not point.is_due() or not _is_first(name):
        return
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if point.action == "error":
        raise ConnectionLost(f"failpoint {name}: the connection is lost")
    time.sleep(point.seconds)


def _has_fired(name: str) -> bool:
    """Whether a process has fired the point; false without a directory to tell by."""
    directory = os.environ.get(LOG_VARIABLE)
    return directory is not None and Path(directory, name).exists()


def _is_first(name: str) -> bool:
    """Whether no process has fired the point before; true without a directory to tell by."""
    directory = os.environ.get(LOG_VARIABLE)
    if directory is None:
        return True
    try:
        Path(directory, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _arm() -> dict[str, _Armed]:
    try:
        armed = parse(os.environ.get(VARIABLE, ""))
        if LOG_VARIABLE not in os.environ and any(point.after for point in armed.values()):
            raise ValueError(f"{VARIABLE}: `after` needs {LOG_VARIABLE}, a directory in which points that fire are recorded")
        directory = os.environ.get(LOG_VARIABLE)
        if armed and directory is not None and not (directory and Path(directory).is_dir()):
            raise ValueError(f"{LOG_VARIABLE}: there is no directory {directory!r}; create it, or name another one")
        return armed
    except ValueError as exc:
        # Read as the module is loaded, in every process of a pipeline, so that no caller could report it better.
        print(exc, file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from None


_ARMED = _arm()
