"""One connection of a client: SASL, frames, links, the token and the transfers (part 2 of the AMQP 1.0 specification)."""

import asyncio
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tests.support.brokers.servicebus_server.codec import (
    Described,
    Symbol,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
    decode,
    decode_all,
    encode,
)
from tests.support.brokers.servicebus_server.faults import Accept, Delay, DropConnection, DropLink, NeverSettle, Reject

if TYPE_CHECKING:
    from tests.support.brokers.servicebus_server.server import ServiceBusDouble

_SASL_HEADER, _AMQP_HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
_MECHANISMS, _OUTCOME = 0x40, 0x44
_SOURCE, _TARGET, _ERROR, _ACCEPTED, _REJECTED = 0x28, 0x29, 0x1D, 0x24, 0x25
_PROPERTIES, _APPLICATION_PROPERTIES, _VALUE = 0x73, 0x74, 0x77
_CHANNEL = 1
_FRAME_BYTES = 64 * 1024
_WINDOW = 0x7FFFFFFF
_CBS = "$cbs"


class Frame(IntEnum):
    """What a frame is about."""

    OPEN = 0x10
    BEGIN = 0x11
    ATTACH = 0x12
    FLOW = 0x13
    TRANSFER = 0x14
    DISPOSITION = 0x15
    DETACH = 0x16
    END = 0x17
    CLOSE = 0x18


@dataclass(slots=True)
class Link:
    """A link of the client; `payload` is what has come of a transfer in several frames."""

    handle: int
    address: str
    is_sender: bool
    payload: bytearray = field(default_factory=bytearray)
    delivery: int = 0
    message_format: int = 0


class Connection:
    """Answers the frames of one client until it, or a fault, closes the connection."""

    def __init__(self, server: "ServiceBusDouble", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server, self._reader, self._writer = server, reader, writer
        self._links: dict[int, Link] = {}
        self._sent = 0

    async def run(self) -> None:
        if self._server.is_mute:
            await self._reader.read()
            return
        await self._negotiate()
        while True:
            await self._writer.drain()
            channel, body = await self._frame()
            # An empty frame only says that the client is alive.
            if body:
                performative, end = decode(memoryview(body))
                if not await self._answer(performative, body[end:], channel):
                    return

    async def _negotiate(self) -> None:
        assert await self._reader.readexactly(8) == _SASL_HEADER
        self._writer.write(_SASL_HEADER)
        self._send(Described(_MECHANISMS, [Symbol("ANONYMOUS")]), channel=0, kind=1)
        await self._frame()
        self._send(Described(_OUTCOME, [Ubyte(0)]), channel=0, kind=1)
        assert await self._reader.readexactly(8) == _AMQP_HEADER
        self._writer.write(_AMQP_HEADER)

    async def _frame(self) -> tuple[int, bytes]:
        size, offset, _, channel = struct.unpack(">IBBH", await self._reader.readexactly(8))
        body = await self._reader.readexactly(size - 8)
        return channel, body[offset * 4 - 8 :]

    def _send(self, value: Described, payload: bytes = b"", channel: int = _CHANNEL, kind: int = 0) -> None:
        body = encode(value) + payload
        self._writer.write(struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body)

    async def _answer(self, performative: Described, payload: bytes, channel: int) -> bool:
        """Answer a frame; whether there is more to expect."""
        fields = performative.value
        match performative.code:
            case Frame.OPEN:
                self._send(Described(Frame.OPEN, ["double", None, Uint(_FRAME_BYTES), Ushort(100)]), channel=0)
            case Frame.BEGIN:
                window = Uint(_WINDOW)
                self._send(Described(Frame.BEGIN, [Ushort(channel), Uint(0), window, window, Uint(255)]))
            case Frame.ATTACH:
                self._attach(fields)
            case Frame.TRANSFER:
                return await self._transfer(fields, payload)
            case Frame.DETACH:
                self._links.pop(fields[0], None)
                self._send(Described(Frame.DETACH, [Uint(fields[0]), True]))
            case Frame.END:
                self._send(Described(Frame.END, []))
            case Frame.CLOSE:
                self._send(Described(Frame.CLOSE, []), channel=0)
                return False
        return True

    def _attach(self, fields: list[Any]) -> None:
        name, handle, is_receiver, source, target = fields[0], fields[1], fields[2], fields[5], fields[6]
        address = str((source if is_receiver else target).value[0]).rsplit("/", 1)[-1]
        self._links[handle] = Link(handle, address, not is_receiver)
        is_known = address == _CBS or self._server.has(address)
        settle_modes = [Ubyte(0), Ubyte(0 if address == _CBS else 1)]
        # A link that is refused gets an attach without target, and then a detach that says why.
        ends = [Described(_SOURCE, [source.value[0]]), Described(_TARGET, [target.value[0]]) if is_known else None]
        size = Ulong(self._server.max_message_bytes)
        properties = {Symbol("com.microsoft:max-message-batch-size"): size}
        head = [name, Uint(handle), not is_receiver, *settle_modes, *ends, None, None]
        tail = [Uint(0) if is_receiver else None, size, None, None, properties]
        self._send(Described(Frame.ATTACH, [*head, *tail]))
        if not is_known:
            self._detach(handle, "amqp:not-found", f"the messaging entity {address!r} could not be found")
        elif not is_receiver:
            window = [Uint(0), Uint(_WINDOW), Uint(0), Uint(_WINDOW)]
            self._send(Described(Frame.FLOW, [*window, Uint(handle), Uint(0), Uint(1000)]))

    def _detach(self, handle: int, condition: str, description: str) -> None:
        self._links.pop(handle, None)
        self._send(Described(Frame.DETACH, [Uint(handle), True, _error(condition, description)]))

    async def _transfer(self, fields: list[Any], payload: bytes) -> bool:
        fields += [None] * (6 - len(fields))
        link = self._links.get(fields[0])
        # What was on its way when the link was dropped.
        if link is None:
            return True
        if not link.payload:
            link.delivery, link.message_format = fields[1], fields[3] or 0
        link.payload += payload
        if fields[5]:
            return True
        whole, link.payload = bytes(link.payload), bytearray()
        if link.address == _CBS:
            self._answer_token(link, whole)
            return True
        return await self._take(link, whole)

    def _answer_token(self, link: Link, payload: bytes) -> None:
        self._settle(link, Described(_ACCEPTED, []))
        sections = {section.code: section.value for section in decode_all(memoryview(payload))}
        status = self._server.judge_token(sections[_APPLICATION_PROPERTIES]["name"], sections[_VALUE])
        # The properties of the answer: message-id, user-id, to, subject, reply-to, correlation-id.
        answer = [
            Described(_PROPERTIES, [None, None, None, None, None, sections[_PROPERTIES][0]]),
            Described(_APPLICATION_PROPERTIES, {"status-code": status, "status-description": f"status {status}"}),
            Described(_VALUE, None),
        ]
        receiver = next(one for one in self._links.values() if one.address == _CBS and not one.is_sender)
        head = [Uint(receiver.handle), Uint(self._sent), struct.pack(">I", self._sent), Uint(0), True, False]
        self._sent += 1
        self._send(Described(Frame.TRANSFER, head), b"".join(encode(section) for section in answer))

    async def _take(self, link: Link, payload: bytes) -> bool:
        """Do with a transfer what the test wants; whether the connection is still there."""
        self._server.transfers += 1
        self._server.sizes.append(len(payload))
        match fault := self._server.next_fault():
            case Reject():
                self._reject(link, fault)
            case Accept():
                self._store_and_settle(link, payload)
            case Delay(seconds):
                await asyncio.sleep(seconds)
                self._store_and_settle(link, payload)
            case NeverSettle(is_stored):
                self._store(link, payload, is_stored)
            case DropLink(is_stored, condition):
                self._store(link, payload, is_stored)
                self._detach(link.handle, condition, "the link is dropped because the test says so")
            case DropConnection(is_stored):
                self._store(link, payload, is_stored)
                return False
        return True

    def _store(self, link: Link, payload: bytes, is_stored: bool) -> None:
        if is_stored:
            self._server.store(link.address, link.message_format, payload)

    def _store_and_settle(self, link: Link, payload: bytes) -> None:
        refusal = self._server.store(link.address, link.message_format, payload)
        if refusal is None:
            self._settle(link, Described(_ACCEPTED, []))
        else:
            self._reject(link, refusal)

    def _reject(self, link: Link, why: Reject) -> None:
        self._settle(link, Described(_REJECTED, [_error(why.condition, why.description)]))

    def _settle(self, link: Link, state: Described) -> None:
        delivery = Uint(link.delivery)
        self._send(Described(Frame.DISPOSITION, [True, delivery, delivery, True, state]))


def _error(condition: str, description: str) -> Described:
    # The SDK looks for all three of them.
    return Described(_ERROR, [Symbol(condition), description, {}])
