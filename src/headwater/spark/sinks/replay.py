"""Dead letters handed to their sink once more. The caller holds the letter; the sink is not opened, for a run may use it."""

from typing import Protocol, runtime_checkable

from headwater.errors import SinkError
from headwater.spark.letters import Letter
from headwater.spark.sinks.postgres import PostgresSink
from headwater.spark.sinks.sink import Sink


@runtime_checkable
class Replays(Protocol):
    """A sink that can have refused a change, and can try again."""

    def replay(self, letter: Letter) -> None:
        """Deliver the letter's change, which is durable on return; raises SinkError if it still cannot be."""


def replay(sink: Sink, letter: Letter) -> None:
    """Deliver a letter's change after all."""
    if not isinstance(sink, Replays):
        raise SinkError(sink.name, "it takes every change, so there is nothing to replay; drop the letter")
    sink.replay(letter)


def keeps_versions(sink: Sink) -> bool:
    """Whether the target has the last version of a row only, so that the changes of a row must go there in order."""
    return isinstance(sink, PostgresSink)
