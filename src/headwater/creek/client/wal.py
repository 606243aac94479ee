"""A table's changes as they come: an endless async iterator of typed messages."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headwater.creek.client.headers import find_event_id, find_unchanged
from headwater.creek.client.messages import Messages, Whole
from headwater.creek.decode import HEAD_BYTES, Decoder, WalMessage, decode_message
from headwater.errors import MessageError
from headwater.model import Lsn


@dataclass(frozen=True, slots=True)
class Until:
    """What is known already: up to an LSN, and of its transaction up to an ordinal; without one, all of it."""

    lsn: Lsn
    ordinal: int | None = None

    def covers(self, message: WalMessage) -> bool:
        if message.source.lsn != self.lsn or self.ordinal is None:
            return message.source.lsn <= self.lsn
        # A message that does not tell its place in the transaction is rather given twice than not at all.
        return message.ordinal is not None and message.ordinal <= self.ordinal


class WalStream:
    """Changes of one table, in the order of the stream, for ever: `async for message in stream`.

    Leave it with `aclose`, or use it as an async context manager. A message that cannot be decoded raises `MessageError`;
    whoever asks for the next one after that leaves it out. A schema that cannot be found now is looked for again then.
    """

    def __init__(
        self,
        messages: Messages,
        find_decoder: Callable[[bytes], Awaitable[Decoder]],
        *,
        after: int = 0,
        until: Until | None = None,
    ) -> None:
        self._messages, self._find_decoder, self._until = messages, find_decoder, until
        self._given = after
        # A message whose decoder has yet to be found.
        self._held: Whole | None = None
        # What messages of the present schema begin with.
        self._head = b""
        self._decoder: Decoder | None = None

    @property
    def position(self) -> int:
        """Everything of the table up to here was given out: go on behind it with `after`.

        While one waits for a table that has no changes it moves on with the stream, which forgets what others have written.
        """
        return self._given if self._held is not None else max(self._given, self._messages.complete)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WalMessage:
        while True:
            # Mostly there is no need to wait for anything.
            whole = self._held or self._messages.take() or await self._messages.next()
            if whole is None:
                continue
            sequence, headers, body = whole
            decoder = self._decoder
            if decoder is None or not body.startswith(self._head):
                decoder = await self._change_decoder(whole)
            self._given = sequence
            try:
                unchanged = find_unchanged(headers)
                message = decoder.wal(body[HEAD_BYTES:], sequence, find_event_id(headers), unchanged)
            except MessageError as error:
                raise _placed(error, sequence) from error
            if self._until is None:
                return message
            if not self._until.covers(message):
                # From here on everything is new, whatever its LSN.
                self._until = None
                return message

    async def _change_decoder(self, whole: Whole) -> Decoder:
        """Another schema than that of the message before, or the first one."""
        sequence, _, body = whole
        try:
            fingerprint, _ = decode_message(body)
        except MessageError as error:
            self._held, self._given = None, sequence
            raise _placed(error, sequence) from error
        self._held = whole
        self._decoder = decoder = await self._find_decoder(fingerprint)
        self._head, self._held = body[:HEAD_BYTES], None
        return decoder

    async def aclose(self) -> None:
        await self._messages.feed.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _placed(error: MessageError, sequence: int) -> MessageError:
    return MessageError(f"message {sequence} of the stream cannot be read: {error}")
