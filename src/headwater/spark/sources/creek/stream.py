"""A stream as the planner sees it: which one of its name it is, what it still holds, and where a subject ends in it."""

import base64
import json
from typing import Any

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import StreamInfo, stream_info
from headwater.errors import BrokerError, PositionError

# The server's number for "no message found".
_NOT_FOUND = 404


class StreamWatch:
    """One stream, asked over a connection that is kept, and opened again when it was lost."""

    def __init__(self, access: NatsAccess, stream: str) -> None:
        self._access, self.stream = access, stream
        self._link: Link | None = None

    def info(self) -> StreamInfo:
        """As it is now; raises PositionError if there is none, BrokerUnavailable if nobody tells."""
        found = stream_info(self._opened(), self.stream)
        if found is None:
            raise PositionError(
                f"there is no stream {self.stream!r} on NATS at {self._access.describe()}; start its producer, or name the "
                "right namespace, generation and database"
            )
        return found

    def require(self, identity: str, first_needed: int) -> StreamInfo:
        """The stream, if it is the one that is meant, and still has what is needed; raises PositionError if not."""
        info = self.info()
        remedy = "load snapshots of its tables, and go on from these"
        if identity_of(info) != identity:
            raise PositionError(
                f"stream {self.stream!r} was deleted and made anew, so that positions in the old one mean nothing; {remedy}"
            )
        if first_needed > info.last_seq + 1:
            raise PositionError(
                f"stream {self.stream!r} ends at {info.last_seq}, and was read up to {first_needed - 1} before: it was "
                f"restored to an earlier state; {remedy}"
            )
        if first_needed < info.first_seq:
            raise PositionError(
                f"stream {self.stream!r} is wanted from {first_needed} on, and the oldest that it has is {info.first_seq}: "
                f"what lies between was removed by its limits before it was read; {remedy}"
            )
        return info

    def last_of(self, subject: str) -> int:
        """The sequence of the last packet of a subject, 0 if there is none."""
        found = self.message({"last_by_subj": subject})
        return 0 if found is None else int(found["seq"])

    def message(self, wanted: dict[str, object]) -> dict[str, Any] | None:
        """A message as the server's API tells it, if there is one; `hdrs` and `data` are bytes."""
        request = json.dumps(wanted).encode()
        answer = json.loads(self._opened().request(f"$JS.API.STREAM.MSG.GET.{self.stream}", request))
        error = answer.get("error")
        if error is not None:
            if error.get("code") == _NOT_FOUND:
                return None
            raise BrokerError(f"NATS at {self._access.describe()} does not show a message of {self.stream!r}: {error}")
        found: dict[str, Any] = answer["message"]
        decoded = {name: base64.b64decode(found.get(name) or "") for name in ("hdrs", "data")}
        return {**found, **decoded}

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None

    def _opened(self) -> Link:
        # A link opens itself again when the server has hung up.
        self._link = self._link or Link(self._access)
        return self._link


def identity_of(info: StreamInfo) -> str:
    """What tells a stream from others that had its name: when it was made."""
    return f"{info.created:%Y%m%dT%H%M%S%f}"
