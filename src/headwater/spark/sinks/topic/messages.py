"""Changes of tables as messages of a topic, by columns. Pure.

The payload is Debezium's envelope, the key that of the row, as JSON. Headers tell the table and the operation.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.creek.encode import UNCHANGED_HEADER
from headwater.spark.letters import Letter
from headwater.spark.sinks.nats.parts import Part
from headwater.topics import Topic
from headwater.topics.arrow import partitions_of, to_frames
from headwater.topics.frame import Framed
from headwater.topics.message import MAX_KEY_BYTES, partition_of

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Messages of one table that the topic takes, and the letters of those that it does not."""

    keys: pa.StringArray
    payloads: pa.BinaryArray
    headers: pa.StringArray
    partitions: npt.NDArray[np.int64]
    letters: list[Letter]

    def __len__(self) -> int:
        return len(self.payloads)


def outgoing(part: Part, is_wanted: Mask, topic: Topic) -> Outgoing:
    """Some messages of a part."""
    messages = part.messages
    keys = pa.nulls(len(messages), pa.string()) if messages.keys is None else messages.keys
    headers = _headers(part)
    refused = _refused(keys, messages.payloads, headers, topic.max_bytes)
    letters = part.letters({place: reason for place, reason in refused.items() if is_wanted[place]})
    kept = is_wanted.copy()
    kept[list(refused)] = False
    places = pa.array(np.flatnonzero(kept))
    keys = keys.take(places)
    # What has no key, such as a truncate, has the order of its table.
    partitions = partitions_of(keys, topic.partitions, partition_of(messages.table.encode(), topic.partitions))
    return Outgoing(keys, messages.payloads.take(places), headers.take(places), partitions, letters)


def frames_of(given: Sequence[Outgoing], topic: Topic) -> list[tuple[int, Framed]]:
    """All of them as frames of their partitions, in order."""
    if not any(map(len, given)):
        return []
    keys, payloads, headers = (
        pa.concat_arrays([getattr(one, name) for one in given]) for name in ("keys", "payloads", "headers")
    )
    partitions = np.concatenate([one.partitions for one in given])
    return list(to_frames(keys, payloads, headers, partitions, compresses=topic.compresses))


def _headers(part: Part) -> pa.StringArray:
    messages = part.messages
    pieces: list[object] = [f'{{"table":{json.dumps(messages.table, ensure_ascii=False)},"op":"', messages.ops, '"']
    if messages.unchanged is not None:
        named = pc.binary_join_element_wise(f',"{UNCHANGED_HEADER}":"', messages.unchanged, '"', "")
        pieces.append(pc.fill_null(named, ""))
    return pc.binary_join_element_wise(*pieces, "}", "")


def _refused(keys: pa.Array, payloads: pa.Array, headers: pa.Array, max_bytes: int) -> dict[int, str]:
    """The messages that are too large, by place, and why."""
    lengths = np.stack([np.asarray(pc.fill_null(pc.binary_length(one), 0), np.int64) for one in (keys, payloads, headers)])
    sizes = lengths.sum(axis=0)
    large = {
        int(place): f"the message has {sizes[place]} bytes, and the topic takes at most {max_bytes}"
        for place in np.flatnonzero(sizes > max_bytes)
    }
    keyed = {
        int(place): f"the key has {lengths[0][place]} bytes; at most {MAX_KEY_BYTES} are allowed"
        for place in np.flatnonzero(lengths[0] > MAX_KEY_BYTES)
    }
    return large | keyed
