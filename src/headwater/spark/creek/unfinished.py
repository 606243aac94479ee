"""Snapshots in the stream that have neither an end nor an error: somebody writes them, or was killed while doing so."""

import base64
from collections.abc import Mapping
from contextlib import closing
from typing import Final

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import ApiError, call, stream_info
from headwater.creek.framing import FIRST_BYTES
from headwater.creek.messages import EOF
from headwater.creek.names import Kind, Names
from headwater.creek.requests import ERROR_HEADER

# Nobody waits for the end of older ones.
_NEWEST: Final = 100


def find_unfinished(access: NatsAccess, names: Names) -> Mapping[str, int]:
    """The newest topics of a database that have not ended, and the sequence of the last message of each."""
    stream = names.stream(Kind.SNAPSHOT)
    with closing(Link(access)) as link:
        info = stream_info(link, stream, names.stream_subject(Kind.SNAPSHOT))
        topics = [] if info is None else sorted(info.subject_counts, key=lambda topic: topic.rpartition(".")[2])
        lasts = {topic: _unfinished_at(link, stream, topic) for topic in topics[-_NEWEST:]}
    return {topic: sequence for topic, sequence in lasts.items() if sequence is not None}


def _unfinished_at(link: Link, stream: str, topic: str) -> int | None:
    """The sequence of a topic's last message, None if that is an end."""
    try:
        message = call(link, f"STREAM.MSG.GET.{stream}", {"last_by_subj": topic})["message"]
    except ApiError:
        # It is gone meanwhile.
        return None
    headers, body = (base64.b64decode(message.get(key, "")) for key in ("hdrs", "data"))
    is_ended = body[FIRST_BYTES:] == EOF or f"\r\n{ERROR_HEADER}:".encode() in headers
    return None if is_ended else int(message["seq"])
