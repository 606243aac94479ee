import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from nats.aio.client import Client as NatsClient

from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Generation, Names
from headwater.creek.requests import (
    ERROR_HEADER,
    RequestRefused,
    RequestServer,
    parse_fingerprint,
    parse_snapshot_request,
    reason_of,
)

NAMES = Names("CREEK", "shop")
SCHEMA = SchemaMessage("9oTzOV2QDOA=", '{"type":"record"}', "public.other", datetime(2023, 8, 30, tzinfo=UTC))


class Client(NatsClient):
    """Subscriptions in memory, and a list of what was published."""

    def __init__(self):
        self.heard: dict[str, Callable[[SimpleNamespace], Awaitable[None]]] = {}
        self.published: list[tuple[str, bytes, dict[str, str] | None]] = []

    async def subscribe(self, subject, queue="", cb=None, *_rest, **_options):
        self.heard[subject] = cb
        return SimpleNamespace(subject=subject, unsubscribe=self._unsubscribe(subject))

    async def publish(self, subject, payload=b"", reply="", headers=None):
        self.published.append((subject, payload, headers))

    async def flush(self, *_rest, **_options):
        pass

    async def say(self, subject, body, reply="inbox"):
        await self.heard[subject](SimpleNamespace(subject=subject, data=body, reply=reply))

    def _unsubscribe(self, subject):
        async def forget():
            del self.heard[subject]

        return forget


class Producer:
    """Knows one schema, and answers when `goes_on` is set."""

    def __init__(self):
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.asked = []

    async def find_schema(self, fingerprint):
        self.asked.append(fingerprint)
        return SCHEMA if fingerprint == SCHEMA.fingerprint else None

    async def take_snapshot(self, request):
        self.asked.append(request.table)
        if request.table == "slow":
            await self.goes_on.wait()
        if request.table == "broken":
            raise OSError("no socket")
        if request.table == "secret":
            raise RequestRefused("there is no snapshot of public.secret:\nnobody may ask for it")
        return f"CREEK.shop.snap.public.{request.table}.1"


@pytest.fixture
async def served():
    client, producer = Client(), Producer()
    server = RequestServer(client, NAMES, producer)
    await server.start()
    yield client, producer
    await server.stop()


async def _settled(times=5):
    for _ in range(times):
        await asyncio.sleep(0)


def _request(table, database="shop"):
    return json.dumps({"database": database, "namespace": "public", "table": table}).encode()


def test_a_fingerprint_is_eight_bytes_in_base64_for_urls_with_or_without_padding():
    assert parse_fingerprint(b"9oTzOV2QDOA=") == parse_fingerprint(b" 9oTzOV2QDOA\n") == "9oTzOV2QDOA="
    assert parse_fingerprint(b"-Gm1kvajdms=") == "-Gm1kvajdms="


@pytest.mark.parametrize("body", [b"", b"9oTzOV2QDO", b"9oTz+V2QDOA=", b"9oTzOV2QDOA==", b"\xff" * 12, b"x" * 10_000])
def test_what_is_no_fingerprint_is_none(body):
    assert parse_fingerprint(body) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        b"null",
        b'"shop"',
        b"{}",
        b'{"database": 1, "namespace": "public", "table": "t"}',
        b"[" * 100_000,
        _request("other", "elsewhere"),
    ],
)
def test_a_request_that_does_not_name_our_database_is_not_ours(body):
    assert parse_snapshot_request(body, "shop") is None


@pytest.mark.parametrize("rest", [{}, {"namespace": "public"}, {"namespace": "public", "table": ""}, {"table": 1}])
def test_a_request_of_ours_that_names_no_table_is_refused(rest):
    with pytest.raises(RequestRefused, match="names no table"):
        parse_snapshot_request(json.dumps({"database": "shop", **rest}).encode(), "shop")


def test_a_reason_is_one_line_and_never_empty():
    assert reason_of(ValueError("a\r\nb  c")) == "a b c"
    assert reason_of(ValueError("")) == "ValueError"
    assert len(reason_of("x" * 10_000)) == 500


@pytest.mark.parametrize("subject", ["CREEK._schema", "CREEK._schemas"])
async def test_a_known_schema_is_answered_as_json(served, subject):
    client, _ = served
    await client.say(subject, b"9oTzOV2QDOA=")
    await _settled()
    assert client.published == [("inbox", SCHEMA.to_json(), None)]


async def test_an_unknown_schema_and_a_malformed_request_stay_silent(served):
    client, producer = served
    for body in (b"AAAAAAAAAAA=", b"what?"):
        await client.say("CREEK._schema", body)
    await _settled()
    assert client.published == []
    assert producer.asked == ["AAAAAAAAAAA="]


async def test_the_reply_to_a_snapshot_request_is_its_topic(served):
    client, _ = served
    await client.say("CREEK._snapshot", _request("other"))
    await _settled()
    assert client.published == [("inbox", b"CREEK.shop.snap.public.other.1", None)]


async def test_a_refusal_is_a_sentence_in_the_body_and_in_the_header(served):
    client, _ = served
    await client.say("CREEK._snapshot", _request("secret"))
    await _settled()
    ((subject, body, headers),) = client.published
    assert subject == "inbox"
    assert body.decode() == headers[ERROR_HEADER] == "there is no snapshot of public.secret: nobody may ask for it"


async def test_requests_of_other_databases_and_unreadable_ones_stay_silent(served):
    client, producer = served
    for body in (_request("other", "elsewhere"), b"{", b"[]"):
        await client.say("CREEK._snapshot", body)
    await _settled()
    assert (client.published, producer.asked) == ([], [])


async def test_a_request_without_a_subject_to_reply_to_is_ignored(served):
    client, producer = served
    await client.say("CREEK._snapshot", _request("other"), reply="")
    await client.say("CREEK._schema", b"9oTzOV2QDOA=", reply="")
    await _settled()
    assert (client.published, producer.asked) == ([], [])


async def test_a_slow_request_and_a_broken_one_hold_up_nobody(served):
    client, producer = served
    producer.goes_on.clear()
    for table in ("slow", "broken", "other"):
        await client.say("CREEK._snapshot", _request(table), reply=table)
    await client.say("CREEK._schema", b"9oTzOV2QDOA=", reply="schema")
    await _settled()
    assert [subject for subject, *_ in client.published] == ["other", "schema"]
    producer.goes_on.set()
    await _settled()
    assert [subject for subject, *_ in client.published] == ["other", "schema", "slow"]


async def test_after_the_stop_nothing_is_heard_and_nobody_is_waited_for():
    client, producer = Client(), Producer()
    producer.goes_on.clear()
    server = RequestServer(client, NAMES, producer)
    await server.start()
    await client.say("CREEK._snapshot", _request("slow"))
    await _settled()
    await server.stop()
    assert (client.heard, client.published) == ({}, [])


async def test_the_second_generation_asks_on_subjects_of_the_database():
    client = Client()
    server = RequestServer(client, Names("CREEK", "shop", Generation.TWO), Producer())
    await server.start()
    assert sorted(client.heard) == ["CREEK_schema_shop", "CREEK_snap_shop"]
    await server.stop()
