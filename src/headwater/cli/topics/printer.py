"""Where messages are printed, and how many more are wanted."""

from collections.abc import Sequence

from headwater.cli.output import ends_in_mid_line, write_whole
from headwater.cli.topics.messages import json_line, text_line
from headwater.topics import Message


class Printer:
    """Prints messages as lines; `left` is how many more, or None for any number."""

    def __init__(self, *, as_json: bool, limit: int | None) -> None:
        self._line = json_line if as_json else text_line
        self.left = limit
        if ends_in_mid_line():
            write_whole("\n")

    def print(self, messages: Sequence[Message]) -> None:
        """Returns when the system has them, at most as many as are wanted."""
        shown = messages[: self.left]
        write_whole("".join(f"{self._line(message)}\n" for message in shown))
        if self.left is not None:
            self.left -= len(shown)
