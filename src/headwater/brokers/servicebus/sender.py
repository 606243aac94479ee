"""Links to queues and topics: opened within a time limit, kept, and closed when they fail or are too many."""

import logging
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.errors import BrokerUnavailable, SettingsError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusSender

# The SDK writes and waits for at most this long at a time. Its own 0.2 s are too short for a full frame on a slow line.
_SOCKET_SECONDS = 1.0
# Each link has a connection of its own, and a namespace may have only some thousands.
_MAX_LINKS = 50


class Senders:
    """One link for each queue or topic that was used lately."""

    def __init__(self, access: ServiceBusAccess, try_seconds: float) -> None:
        self._access, self._seconds = access, try_seconds
        self._client: ServiceBusClient | None = None
        self._open: OrderedDict[str, ServiceBusSender] = OrderedDict()

    def get(self, entity: str) -> "ServiceBusSender":
        """An open link; what the SDK raises when there can be none."""
        sender = self._open.get(entity) or self._opened(entity)
        self._open[entity] = sender
        self._open.move_to_end(entity)
        while len(self._open) > _MAX_LINKS:
            self.drop(next(iter(self._open)))
        return sender

    def drop(self, entity: str) -> None:
        """Close a link; the next use opens a new one."""
        if sender := self._open.pop(entity, None):
            sender.close()

    def close(self) -> None:
        for entity in list(self._open):
            self.drop(entity)
        if self._client is not None:
            self._client.close()
            self._client = None

    def _opened(self, entity: str) -> "ServiceBusSender":
        self._client = self._client or _client(self._access, self._seconds)
        # Queues and topics have one namespace of names, and are sent to in the same way. There is no thread to keep the
        # connection alive: it would read what we wait for, and a fork would not have it. Idle connections are opened anew.
        sender = self._client.get_queue_sender(entity, socket_timeout=_SOCKET_SECONDS, keep_alive=0)
        _have_sockets_closed(sender)
        opening = _Opening(sender)
        opening.start()
        opening.join(self._seconds + _SOCKET_SECONDS)
        return opening.result(self._access.describe())


class _Opening(Thread):
    """Opens a link. The SDK waits without limit for a server that takes a connection and says nothing; we do not."""

    def __init__(self, sender: "ServiceBusSender") -> None:
        super().__init__(name="open Service Bus", daemon=True)
        self._sender = sender
        self._error: Exception | None = None
        self._is_open = self._is_abandoned = False

    def run(self) -> None:
        try:
            self._sender.__enter__()
        except Exception as exc:  # noqa: BLE001 - whatever ends the thread must reach the caller
            self._error = exc
        self._is_open = self._error is None
        if self._is_abandoned:
            self._sender.close()

    def result(self, where: str) -> "ServiceBusSender":
        if self._error is not None:
            self._sender.close()
            raise self._error
        if not self._is_open:
            self._is_abandoned = True
            # So that the thread comes to an end; whatever the SDK makes of it is of no interest any more.
            if line := getattr(_transport(self._sender), "sock", None):
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
            raise BrokerUnavailable(f"Service Bus at {where} takes connections, but does not answer on them")
        return self._sender


def _have_sockets_closed(sender: "ServiceBusSender") -> None:
    """The SDK leaves the socket of a connection that broke to the garbage collector; have it closed with its handler."""
    close_handler: Callable[[], None] = sender._close_handler

    def close() -> None:
        transport = _transport(sender)
        try:
            close_handler()
        finally:
            if transport is not None:
                transport.close()

    sender._close_handler = close  # type: ignore[method-assign]  # the SDK gives no other place for it


def _transport(sender: "ServiceBusSender") -> Any:
    """What holds the socket, if there is one."""
    return getattr(getattr(getattr(sender, "_handler", None), "_connection", None), "_transport", None)


def require_sdk() -> None:
    """Raise SettingsError where the SDK is not installed."""
    try:
        import azure.servicebus  # noqa: F401 - only whether it is there
    except ImportError as exc:
        raise SettingsError("Service Bus needs the SDK of Azure; install headwater[servicebus]") from exc


def _client(access: ServiceBusAccess, try_seconds: float) -> "ServiceBusClient":
    from azure.servicebus import ServiceBusClient

    _quieten()
    try:
        # We try again ourselves, so that the order holds and the time is ours.
        return ServiceBusClient.from_connection_string(access.connection_string, retry_total=0, try_timeout=try_seconds)
    except ValueError:
        # Its words may repeat the connection string.
        raise SettingsError("the SDK of Service Bus does not understand the connection string; copy it anew") from None


def _quieten() -> None:
    """The SDK tells of each frame and failure, which we report ourselves; a level that somebody has set is left alone."""
    logger = logging.getLogger("azure.servicebus")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
