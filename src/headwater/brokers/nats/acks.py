"""JetStream's answers to publishes: taken in bulk while all is well, one by one when something is not. Pure."""

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headwater.brokers.nats.protocol import Message

# The message itself is the reason, so it will be refused however often it is sent: larger than the stream's max_msg_size,
# headers of more than 64 KiB, a time to live that is none or that the stream does not allow.
_FOR_GOOD = frozenset({10054, 10097, 10165, 10166})
_NO_RESPONDERS = 503


class Acks(NamedTuple):
    """Acknowledged messages by number, in the order in which the answers came."""

    numbers: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.int64]
    is_duplicate: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that was not stored, and why; `code` is JetStream's own, or 503 when no stream listens."""

    number: int
    code: int
    reason: str

    @property
    def is_final(self) -> bool:
        return self.code in _FOR_GOOD


class AckReader:
    """Reads the answers that come to one prefix of subjects."""

    def __init__(self, prefix: str, sid: int) -> None:
        ack = (
            rb"MSG %b(\d+) %d \d+\r\n" % (re.escape(prefix.encode()), sid)
            + rb'\{"stream":"[^"\r\n]*", *(?:"domain":"[^"\r\n]*", *)?"seq":(\d+)(?:, *"domain":"[^"\r\n]*")?'
            + rb'(, *"duplicate": *true)?\}\r\n'
        )
        self._one = re.compile(ack)
        # Possessive: a run that ends in half an answer must not be tried again shorter and shorter.
        self.run = re.compile(rb"(?:%b)++" % re.sub(rb"\((?!\?)", rb"(?:", ack))
        self._prefix = prefix.encode()

    def parse_run(self, run: bytes) -> Acks:
        """All of what `run` has matched."""
        numbers, sequences, duplicates = zip(*self._one.findall(run), strict=True)
        return Acks(
            np.fromiter(map(int, numbers), np.int64, len(numbers)),
            np.fromiter(map(int, sequences), np.int64, len(numbers)),
            np.fromiter(map(bool, duplicates), np.bool_, len(numbers)),
        )

    def parse(self, message: Message) -> Acks | Failure | None:
        """One answer in whatever form; None when it is none of ours, or not from JetStream."""
        number = message.subject.removeprefix(self._prefix)
        if number == message.subject or not number.isdigit():
            return None
        if message.status is not None:
            reason = "no stream listens" if message.status.code == _NO_RESPONDERS else message.status.reason
            return Failure(int(number), message.status.code, reason)
        return _parse_body(int(number), message.payload)


def _parse_body(number: int, payload: bytes) -> Acks | Failure | None:
    try:
        answer: dict[str, Any] = json.loads(payload)
        if error := answer.get("error"):
            return Failure(number, int(error.get("err_code", error.get("code", 0))), str(error.get("description", error)))
        sequence, is_duplicate = int(answer["seq"]), bool(answer.get("duplicate"))
    except (ValueError, LookupError, TypeError, AttributeError):
        # Somebody else listens to the subject too, and answers in his own way.
        return None
    return Acks(np.array([number], np.int64), np.array([sequence], np.int64), np.array([is_duplicate]))
