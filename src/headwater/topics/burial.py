"""Dead letters of a group: messages that are put aside, so that the others can go on."""

import json
import logging
from typing import Final

from headwater.errors import LeaseLost
from headwater.topics import group_statements
from headwater.topics.group_statements import Group
from headwater.topics.line import Line
from headwater.topics.message import Message
from headwater.topics.window import Part

_log = logging.getLogger(__name__)

# For a message whose reader could not say why.
UNKNOWN: Final = "it was given out alone and not committed: its reader has failed or was ended"


class Burial:
    """By one who has the epoch of what the messages are a part of; anybody else gets LeaseLost."""

    def __init__(self, line: Line, group: Group) -> None:
        self._line, self._group = line, group

    async def of_one(self, message: Message, part: Part, reason: str) -> None:
        assert isinstance(message.payload, bytes) and message.offset is not None and message.created_at is not None
        buried = await self._line.execute(
            group_statements.bury(
                self._group.id,
                part.partition,
                message.offset,
                first_offset=part.first_offset,
                key=message.key,
                payload=message.payload,
                headers=json.dumps(dict(message.headers or {})),
                created_at=message.created_at,
                reason=reason.replace("\0", ""),
                attempts=part.attempts,
                epoch=part.epoch,
            )
        )
        if not buried:
            raise LeaseLost(
                f"message {message.offset} of partition {part.partition} is somebody else's by now, and is dealt with there"
            )

    async def of_all(self, part: Part, reason: str) -> None:
        """Of what nobody has asked for."""
        for message in part.messages():
            _log.warning(
                "message %d of partition %d of topic %r is a dead letter of group %r: %s",
                message.offset,
                message.partition,
                self._group.topic,
                self._group.name,
                reason,
            )
            await self.of_one(message, part, reason)
