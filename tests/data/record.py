"""Records what pgoutput sends for the scenarios in `pgoutput/*.sql`, on every server version that is here.

Run as `python -m tests.data.record` after adding a scenario. A script is set up, a slot is made, the paragraphs behind the
line `-- recorded from here` are executed one by one, and the slot is read to its end, once for each way that the script says
it is to be read. The messages go, length first, to `<scenario>-<version>.bin.gz`.
"""

import gzip
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwater.embedded import EmbeddedPostgres
from headwater.model import Lsn
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.stream import ReplicationConnection
from tests.support.servers.embedded import fresh_database, postgres_settings

FOLDER = Path(__file__).parent / "pgoutput"
VERSIONS = (15, 16, 18)
# `-- read as streamed since 15: proto_version=2 streaming=on`
_READ_AS = re.compile(r"^-- read as (?P<name>\w+) since (?P<since>\d+): (?P<options>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Scenario:
    """A script, and how its changes are to be read."""

    name: str
    setup: str
    steps: tuple[str, ...]
    options: dict[str, str]
    since: int

    @classmethod
    def read(cls, path: Path) -> "list[Scenario]":
        """The scenarios of a script: one for each way in which its notes say that it is to be read."""
        text = path.read_text(encoding="utf-8")
        setup, recorded = text.split("-- recorded from here\n")
        steps = tuple(step.strip() for step in recorded.split("\n\n") if step.strip())
        return [
            cls(found["name"], setup, steps, dict(pair.split("=") for pair in found["options"].split()), int(found["since"]))
            for found in _READ_AS.finditer(text)
        ]

    @property
    def two_phase(self) -> bool:
        return self.options.get("two_phase") == "on"


def scenarios() -> list[Scenario]:
    return [scenario for path in sorted(FOLDER.glob("*.sql")) for scenario in Scenario.read(path)]


def recordings() -> list[tuple[Scenario, int]]:
    """Every scenario with every version that it is recorded for."""
    return [(scenario, version) for scenario in scenarios() for version in VERSIONS if version >= scenario.since]


def load(scenario: str, version: int) -> list[bytes]:
    """The messages of a recording."""
    data = gzip.decompress((FOLDER / f"{scenario}-{version}.bin.gz").read_bytes())
    return list(_unframed(data))


def save(scenario: str, version: int, messages: list[bytes]) -> None:
    framed = b"".join(struct.pack("!I", len(message)) + message for message in messages)
    (FOLDER / f"{scenario}-{version}.bin.gz").write_bytes(gzip.compress(framed, mtime=0))


def record(url: str, scenario: Scenario) -> list[bytes]:
    """Play a scenario in a fresh database and return what the plugin sent."""
    connection = connect_sync(url)
    connection.execute(scenario.setup.encode())
    publications = ",".join(row[0] for row in connection.execute("select pubname from pg_publication").fetchall())
    with ReplicationConnection(url) as replication:
        # The smallest there is, so that little is enough to have a transaction streamed.
        replication.command("set logical_decoding_work_mem = '64kB'")
        # The option of the stream is given when the slot is made, too: the recording holds what was prepared before.
        two_phase = ", TWO_PHASE" if scenario.two_phase else ""
        replication.command(f"CREATE_REPLICATION_SLOT recorder TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing'{two_phase})")
        for step in scenario.steps:
            connection.execute(step.encode())
        ((end,),) = connection.execute("select pg_current_wal_insert_lsn()").fetchall()
        options = {**scenario.options, "publication_names": publications}
        stream = replication.start("recorder", Lsn(0), options)
        messages = []
        while True:
            received = stream.read(5, 1 << 20)
            messages += [bytes(message) for message in received.messages]
            if received.keepalive and received.keepalive.wal_end >= end:
                stream.close()
                connection.close()
                return messages


def _unframed(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("!I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def main() -> None:
    for version in VERSIONS:
        with EmbeddedPostgres(postgres_settings(version)) as server:
            for scenario in scenarios():
                if version >= scenario.since:
                    with fresh_database(server.url) as url:
                        save(scenario.name, version, record(url, scenario))


if __name__ == "__main__":
    main()
