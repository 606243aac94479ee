"""Pipelines from and to topics, described by a file, as `headwater run` reads it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync
from headwater.topics import Message, find_sync, number_sync
from headwater.topics.frame import Framed, read_messages
from headwater.topics.statements import read_frames


def write_pipeline(directory: Path, name: str, source: Mapping[str, object], sink: Mapping[str, object]) -> Path:
    """The file of a pipeline in a directory, which is made if it is missing."""
    directory.mkdir(exist_ok=True)
    spark = {"master": "local[2]"}
    # JSON texts, numbers and truths are TOML, too.
    lines = [f"name = {json.dumps(name)}"]
    for header, values in {"[source]": source, "[[sinks]]": sink, "[spark]": spark}.items():
        lines += [header, *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items())]
    file = directory / "headwater.toml"
    file.write_text("\n".join(lines))
    return file


def messages_of(connection: Connection, topic: str) -> list[Message]:
    """All messages of a topic, by partition and offset."""
    found = find_sync(connection, topic)
    number_sync(connection, found)
    partitions = list(range(found.partitions))
    rows = fetch_sync(connection, read_frames(found.id, partitions, [0] * len(partitions), 1_000_000))
    return [
        message
        for row in rows
        for message in read_messages(Framed(row.count, row.codec, row.frame), row.partition, row.last_offset, row.created_at)
    ]


def changes_of(connection: Connection, topic: str) -> list[dict[str, Any]]:
    """All changes that a pipeline has appended to a topic."""
    return [json.loads(message.payload) for message in messages_of(connection, topic) if isinstance(message.payload, bytes)]
