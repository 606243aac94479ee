"""What the server can be told to do with a transfer instead of storing and settling it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accept:
    """Store and settle, as always."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Settle as rejected, with a condition such as com.microsoft:server-busy."""

    condition: str
    description: str = "because the test says so"


@dataclass(frozen=True, slots=True)
class Delay:
    """Store, and settle only after some time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NeverSettle:
    """Say nothing."""

    is_stored: bool = True


@dataclass(frozen=True, slots=True)
class DropLink:
    """Detach the link, without a word about the transfer."""

    is_stored: bool = False
    condition: str = "amqp:link:detach-forced"


@dataclass(frozen=True, slots=True)
class DropConnection:
    """Close the socket, without a word about the transfer."""

    is_stored: bool = False


Fault = Accept | Reject | Delay | NeverSettle | DropLink | DropConnection
