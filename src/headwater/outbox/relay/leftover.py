"""What a relay could not finish before it stopped."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leftover:
    """All of it is in the table, and sent by whoever claims it.

    `released` were not sent, and may be claimed at once. `in_flight` had no word of the broker, and `unsaved` were published
    without that being written down: both may be sent a second time once their lease has ended.
    """

    released: int = 0
    in_flight: int = 0
    unsaved: int = 0

    def __bool__(self) -> bool:
        return bool(self.released or self.in_flight or self.unsaved)
