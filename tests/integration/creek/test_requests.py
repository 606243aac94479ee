"""Requests on a real NATS, answered by producers that hold what they know in memory."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import nats as nats_py
import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.connection import connect
from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Generation, Names
from headwater.creek.requests import RequestRefused, RequestServer
from headwater.embedded import EmbeddedNats, NatsSettings
from tests.support.brokers.nats_streams import fresh_namespace
from tests.support.servers.embedded import shared_root

FINGERPRINT = "9oTzOV2QDOA="
SCHEMA = SchemaMessage(FINGERPRINT, '{"type":"record"}', "public.other", datetime(2023, 8, 30, tzinfo=UTC))


class Producer:
    """Takes snapshots of table `other` alone, and knows one schema if it is told so."""

    def __init__(self, database, knows=True):
        self.database, self.knows = database, knows

    async def find_schema(self, fingerprint):
        return SCHEMA if self.knows and fingerprint == FINGERPRINT else None

    async def take_snapshot(self, request):
        if request.table != "other":
            raise RequestRefused(f"there is no snapshot of {request.table}: it does not exist")
        return f"topic.of.{self.database}"


@asynccontextmanager
async def _serving(url, names, producer, **options):
    client = await connect(NatsAccess(url=url, timeout=timedelta(seconds=5)), **options)
    server = RequestServer(client, names, producer)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        await client.close()


@pytest.fixture
async def client(nats):
    async with await nats_py.connect(nats.url) as client:
        yield client


def _request(database, table="other"):
    return json.dumps({"database": database, "namespace": "public", "table": table}).encode()


@pytest.mark.parametrize("generation", Generation)
async def test_schemas_and_snapshots_are_answered_in_both_generations(nats, client, generation):
    names = Names(fresh_namespace(), "shop", generation)
    async with _serving(nats.url, names, Producer("shop")):
        for subject in names.schema_requests:
            reply = await client.request(subject, FINGERPRINT.encode(), timeout=5)
            # Not in packets, unlike what is in a stream.
            assert SchemaMessage.from_json(reply.data) == SCHEMA
        (subject,) = names.snapshot_requests
        reply = await client.request(subject, _request("shop"), timeout=5)
        assert (reply.data, reply.headers) == (b"topic.of.shop", None)


async def test_an_error_is_a_sentence_in_body_and_header(nats, client):
    names = Names(fresh_namespace(), "shop")
    async with _serving(nats.url, names, Producer("shop")):
        reply = await client.request(f"{names.root}._snapshot", _request("shop", "none"), timeout=5)
    assert reply.headers == {"Headwater-Error": "there is no snapshot of none: it does not exist"}
    assert reply.data == b"there is no snapshot of none: it does not exist"


async def test_the_server_knows_of_the_subscriptions_when_it_has_started(nats, monkeypatch):
    """Otherwise one who asks at once is told that nobody is there."""
    client = await connect(NatsAccess(url=nats.url, timeout=timedelta(seconds=5)))
    transport = client._transport
    assert transport is not None
    write, writelines = transport.write, transport.writelines
    sent: list[bytes] = []

    def note(data: bytes) -> None:
        sent.append(data)
        write(data)

    def note_all(data: list[bytes]) -> None:
        sent.extend(data)
        writelines(data)

    monkeypatch.setattr(transport, "write", note)
    monkeypatch.setattr(transport, "writelines", note_all)
    server = RequestServer(client, Names(fresh_namespace(), "shop"), Producer("shop"))
    await server.start()
    # What was asked for last is answered last, and that was waited for.
    assert [data[:4] for data in sent][-1] == b"PING"
    assert any(data.startswith(b"SUB") for data in sent)
    await server.stop()
    await client.close()


async def test_of_two_producers_each_answers_what_it_knows(nats, client):
    """With Creek the wrong one may answer, and one that does not know keeps the other from answering."""
    root = fresh_namespace()
    shop, bank = Names(root, "shop"), Names(root, "bank")
    async with _serving(nats.url, shop, Producer("shop", knows=False)), _serving(nats.url, bank, Producer("bank")):
        for database in ("shop", "bank") * 3:
            reply = await client.request(f"{root}._snapshot", _request(database), timeout=5)
            assert reply.data.decode() == f"topic.of.{database}"
            reply = await client.request(f"{root}._snapshot", _request(database, "none"), timeout=5)
            assert "Headwater-Error" in reply.headers
        reply = await client.request(f"{root}._schema", FINGERPRINT.encode(), timeout=5)
        assert SchemaMessage.from_json(reply.data) == SCHEMA


@pytest.mark.parametrize("body", [b"", b"{", b"AAAAAAAAAAA=", b"\x00\xff", b'{"database": "elsewhere"}'])
async def test_what_nobody_here_can_answer_stays_silent_and_harms_nobody(nats, client, body):
    names = Names(fresh_namespace(), "shop")
    async with _serving(nats.url, names, Producer("shop")):
        for subject in (*names.schema_requests, *names.snapshot_requests):
            with pytest.raises(nats_py.errors.TimeoutError):
                await client.request(subject, body, timeout=0.2)
            await client.publish(subject, body)
        reply = await client.request(f"{names.root}._snapshot", _request("shop"), timeout=5)
        assert reply.data == b"topic.of.shop"


async def test_after_a_restart_of_nats_the_subscriptions_are_there_again():
    names, back = Names(fresh_namespace(), "shop"), asyncio.Event()

    async def is_back():
        back.set()

    async def quiet(_):
        """A server that was stopped is no news."""

    with EmbeddedNats(NatsSettings(root=shared_root())) as server:
        options = {"reconnected_cb": is_back, "error_cb": quiet, "reconnect_time_wait": 0.1, "max_reconnect_attempts": -1}
        async with _serving(server.url, names, Producer("shop"), **options):
            await asyncio.to_thread(server.restart)
            async with asyncio.timeout(15):
                await back.wait()
            async with await nats_py.connect(server.url) as client:
                reply = await client.request(f"{names.root}._snapshot", _request("shop"), timeout=5)
            assert reply.data == b"topic.of.shop"
