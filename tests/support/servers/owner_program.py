"""A program that owns an embedded server, to be killed by a test: python owner_program.py postgres|nats JSON.

Starts the server with the settings, says in one line of JSON what it started, and waits for its input to end. With a
`uid` in the settings it first becomes that user for good; by then everything is imported, so that a Python below a home
that is closed to others serves as well.
"""

import json
import os
import signal
import sys
from pathlib import Path

from headwater.embedded import EmbeddedNats, EmbeddedPostgres, NatsSettings, PostgresSettings
from headwater.errors import HeadwaterError


def main(kind: str, given: dict[str, str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "uid" in given:
        become(int(given.pop("uid")))
    paths = {name: Path(value) for name, value in given.items()}
    try:
        server = EmbeddedNats(NatsSettings(**paths)) if kind == "nats" else EmbeddedPostgres(PostgresSettings(**paths))  # type: ignore[arg-type]  # the test knows which are paths
        with server:
            say({"pid": server.pid, "url": server.url, "directory": str(server.directory)})
            sys.stdin.read()
    except HeadwaterError as error:
        say({"error": type(error).__name__, "message": str(error)})
    return 0


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
