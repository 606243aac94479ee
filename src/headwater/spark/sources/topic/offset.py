"""How far a topic is read, as Spark logs it: the next offset of each partition."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from headwater.errors import PositionError
from headwater.spark.sources.content import Content

# Raised when the meaning of a logged range changes.
VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """Everything before `next` is read; a partition that is not there is read from its beginning.

    `identity` tells the topic from another that had its name. `content` is of the range that ends here.
    """

    topic: str
    identity: str
    next: Mapping[int, int]
    content: Content = field(default_factory=Content)

    def to_json(self) -> dict[str, Any]:
        """The form that Spark logs, and compares as text."""
        return {
            "version": VERSION,
            "source": "topic",
            "topic": self.topic,
            "identity": self.identity,
            "next": {str(partition): self.next[partition] for partition in sorted(self.next)},
            "holds": self.content.to_json(),
        }

    @classmethod
    def from_json(cls, logged: Mapping[str, object]) -> "TopicOffset":
        """The offset that was logged; raises PositionError for one that is not ours."""
        try:
            if logged["source"] != "topic" or logged["version"] != VERSION:
                raise ValueError("another source, or another release")
            following = cast("Mapping[str, int]", logged["next"])
            return cls(
                str(logged["topic"]),
                str(logged["identity"]),
                {int(partition): int(offset) for partition, offset in following.items()},
                Content.from_json(cast("Mapping[str, object]", logged["holds"])),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as exc:
            raise PositionError(
                "the checkpoint directory is not one of a `headwater.topic` source; name another, or remove it"
            ) from exc
