"""nats-py with the same access: for whatever is async and not in bulk."""

import asyncio
from typing import Any

from nats.aio.client import Client
from nats.errors import Error

from headwater.brokers.nats.access import NatsAccess, Server
from headwater.brokers.nats.handshake import ServerInfo, read_login
from headwater.brokers.nats.link import Link
from headwater.errors import BrokerError, BrokerUnavailable


async def connect(access: NatsAccess, **options: Any) -> Client:
    """A connection of nats-py; `options` are its own and win. Raises `BrokerUnavailable` or `BrokerError`."""
    # nats-py tells a refusal and a dead server apart by text only, tries on for minutes, and leaves its sockets open; so our
    # own client knocks first.
    _refuse_plain(access, await asyncio.to_thread(_knock, access))
    client = Client()
    if (login := read_login(access)) is not None and login.jwt is None:
        # It signs by itself only with another library than the one that we have, and has no other place for the name.
        client._public_nkey = login.public_key
    try:
        await client.connect(**{**_options(access), **options})
    except (OSError, Error, TimeoutError) as error:
        await client.close()
        raise BrokerUnavailable(f"cannot connect to NATS at {access.describe()}: {str(error) or 'no answer'}") from error
    return client


def _knock(access: NatsAccess) -> ServerInfo:
    with Link(access) as link:
        return link.info


def _refuse_plain(access: NatsAccess, info: ServerInfo) -> None:
    """nats-py goes on without TLS, password and all, where a server offers it but does not ask for it."""
    if (access.wants_tls or any(server.is_tls for server in access.servers)) and not info.wants_tls:
        raise BrokerError(
            f"the NATS server at {access.describe()} does not insist on TLS, so nats-py would not use it; remove "
            "allow_non_tls from the server's configuration"
        )


def _options(access: NatsAccess) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": [f"{'tls' if server.is_tls else 'nats'}://{server.address}" for server in access.servers],
        "name": access.name,
        "connect_timeout": access.timeout.total_seconds(),
        "inbox_prefix": access.inbox_prefix,
        "dont_randomize": True,
        **_credentials(access),
    }
    if access.wants_tls or any(server.is_tls for server in access.servers):
        options |= {"tls": access.tls_context(), "tls_handshake_first": access.is_tls_first}
    return options


def _credentials(access: NatsAccess) -> dict[str, Any]:
    if login := read_login(access):
        callbacks: dict[str, Any] = {"signature_cb": lambda nonce: login.sign(nonce).encode()}
        if (jwt := login.jwt) is not None:
            callbacks["user_jwt_cb"] = lambda: jwt.encode()
        return callbacks
    # It knows one pair for all servers, and does not decode what stands in a URL.
    holders: list[NatsAccess | Server] = [access, *access.servers]
    for holder in holders:
        if holder.token is not None:
            return {"token": holder.token}
        if holder.user is not None:
            return {"user": holder.user, "password": holder.password or ""}
    return {}
