"""The HTTP API against a real database: what is accepted and durable, what is refused, and what is told of a message."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest
from starlette.responses import Response

from headwater.comms.api import Api
from headwater.comms.session import Sessions
from headwater.comms.settings import ApiSettings
from headwater.comms.submit import Submitter
from headwater.queue import Enqueuer, EnqueuerSettings
from tests.support.queue.email_consumers import consuming, quick, smtp_to, states, tried
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import until

MESSAGE = {"to": ["zoe@example.com"], "subject": "Invoice 7", "text": "Pay, please."}
TOKEN = "a-token-of-some-length"


async def answer_health(_request):
    return Response("healthy")


class Client(httpx.AsyncClient):
    """A client of the API, which is at hand beside it."""

    def __init__(self, api: Api) -> None:
        transport = httpx.ASGITransport(api.application({"/health": answer_health}))
        super().__init__(transport=transport, base_url="http://test")
        self.api = api


@asynccontextmanager
async def serving(url, give_up_after=timedelta(milliseconds=500), **changes):
    """The API, and a client of it."""
    settings = ApiSettings(**{"sender": "Shop <shop@example.com>", **changes})
    sessions = Sessions(url, settings.connections, settings.answer_within)
    gives_up = EnqueuerSettings(give_up_after=give_up_after, close_within=timedelta(seconds=1))
    async with Enqueuer(url, gives_up) as enqueuer:
        api = Api(Submitter(enqueuer, sessions, settings.queue, settings.sender), sessions, settings)
        async with Client(api) as client:
            yield client
    await sessions.close()


@pytest.fixture
async def client(comms_url):
    async with serving(comms_url) as client:
        yield client


def jobs(connection):
    return [payload for (payload,) in connection.execute("select payload from headwater.job order by id").fetchall()]


async def post(client, body, **headers):
    return await client.post(
        "/emails", json=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


@pytest.mark.parametrize("body", [[MESSAGE], {"messages": [MESSAGE]}])
async def test_a_message_is_durable_before_it_is_accepted(client, connection, body):
    answer = await post(client, body)
    assert answer.status_code == 202
    (job_id,) = answer.json()["ids"]
    assert states(connection) == {job_id: "scheduled"}
    assert jobs(connection) == [{"from": "Shop <shop@example.com>", **MESSAGE}]


async def test_a_batch_gets_an_id_for_each_in_order(client, connection):
    batch = [{**MESSAGE, "subject": f"Invoice {n}"} for n in range(30)]
    ids = (await post(client, batch)).json()["ids"]
    assert list(states(connection)) == ids
    assert [one["subject"] for one in jobs(connection)] == [one["subject"] for one in batch]


async def test_one_wrong_message_refuses_the_batch_and_each_fault_is_named(client, connection):
    batch = [MESSAGE, {**MESSAGE, "to": ["nobody"], "subjct": "x"}, MESSAGE, {"to": ["zoe@example.com"]}]
    answer = await post(client, batch)
    assert answer.status_code == 422
    assert answer.json() == {
        "error": "2 of 4 messages cannot be sent as they are, so none was accepted; correct what `faults` names",
        "faults": [
            {
                "message": 1,
                "field": "to[0]",
                "fault": "is no e-mail address; write one as zoe@example.com or Zoe <zoe@example.com>",
            },
            {"message": 1, "field": "subjct", "fault": "there is no such key; did you mean `subject`?"},
            {
                "message": 3,
                "field": "subject",
                "fault": "is empty, and there is no text, html or attachment either; give at least one of them",
            },
        ],
        "more": 0,
    }
    assert states(connection) == {}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "the body is not JSON"),
        (b"{nonsense", 400, "the body is not JSON"),
        (b'"text"', 422, "neither a list nor an object"),
        (b"[]", 422, "the list is empty"),
        (b'{"messages": {}}', 422, "is missing, or no list"),
        (b'{"message": []}', 422, "is missing, or no list"),
        (b'{"messages": [{}], "from": "x"}', 422, "from: there is no such key beside `messages`"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b"\xff\xfe", 400, "the body is not JSON"),
    ],
)
async def test_what_is_no_list_of_messages_is_refused(client, connection, body, status, said):
    answer = await client.post("/emails", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, said in answer.json()["error"]) == (status, True)
    assert states(connection) == {}


async def test_too_much_is_refused(comms_url, connection):
    async with serving(comms_url, max_bytes=1000, max_messages=3) as client:
        answer = await post(client, [{**MESSAGE, "text": "x" * 1000}])
        assert (answer.status_code, "more than 1,000 bytes" in answer.json()["error"]) == (413, True)
        answer = await post(client, [MESSAGE] * 4)
        assert (answer.status_code, "at most 3 are taken at once" in answer.json()["error"]) == (422, True)
    assert states(connection) == {}


async def test_a_message_that_the_queue_cannot_hold_is_refused_too(client, connection):
    quotes = {"text": '"' * 400 * 1024, "headers": {f"X-{n}": '"' * 1996 for n in range(50)}, "subject": '"' * 1996}
    names = [f"{'ü' * 900} <a{n}@example.com>" for n in range(50)]
    for batch in ([{**MESSAGE, **quotes, "to": names}], [MESSAGE, {**MESSAGE, **quotes, "to": names}]):
        answer = await post(client, batch)
        assert (answer.status_code, "bytes" in answer.json()["error"]) == (422, True)
    assert states(connection) == {}


async def test_a_body_of_another_type_is_refused(client):
    answer = await client.post("/emails", content=json.dumps([MESSAGE]), headers={"Content-Type": "text/plain"})
    assert (answer.status_code, "application/json" in answer.json()["error"]) == (415, True)


@pytest.mark.parametrize("count", [1, 5])
async def test_the_same_key_gives_the_same_ids_and_sends_nothing_twice(client, connection, count):
    batch = [{**MESSAGE, "subject": f"Invoice {n}"} for n in range(count)]
    first = await post(client, batch, Idempotency_Key="order-17")
    again = await client.post(
        "/emails",
        # The same messages, written in another way.
        content=json.dumps({"messages": batch}, indent=4, sort_keys=True),
        headers={"Idempotency-Key": "order-17", "Content-Type": "application/json"},
    )
    assert (first.status_code, again.status_code, first.json()) == (202, 202, again.json())
    assert len(states(connection)) == count
    other = await post(client, batch, Idempotency_Key="order-18")
    assert not set(other.json()["ids"]) & set(first.json()["ids"])


async def test_the_same_key_at_the_same_time_gives_the_same_ids(client, connection):
    batch = [{**MESSAGE, "subject": f"Invoice {n}"} for n in range(5)]
    answers = await asyncio.gather(*(post(client, batch, Idempotency_Key="order-17") for _ in range(4)))
    assert {tuple(answer.json()["ids"]) for answer in answers} == {tuple(states(connection))}
    singles = await asyncio.gather(*(post(client, batch[:1], Idempotency_Key="order-18") for _ in range(4)))
    assert len({tuple(answer.json()["ids"]) for answer in singles}) == 1
    assert len(states(connection)) == 6


async def test_the_same_key_holds_also_when_the_message_is_sent(client, comms_url, connection, mail_server):
    (job_id,) = (await post(client, [MESSAGE], Idempotency_Key="order-17")).json()["ids"]
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: states(connection) == {job_id: "done"})
        assert (await post(client, [MESSAGE], Idempotency_Key="order-17")).json() == {"ids": [job_id]}
        (other,) = (await post(client, [MESSAGE])).json()["ids"]
        await until(lambda: states(connection) == {job_id: "done", other: "done"})
    assert len(mail_server.mails) == 2


@pytest.mark.parametrize(("first", "second"), [(1, 1), (3, 3), (1, 3), (3, 1), (2, 3)])
async def test_the_same_key_with_other_messages_is_refused_and_nothing_is_accepted(client, connection, first, second):
    assert (await post(client, [MESSAGE] * first, Idempotency_Key="order-17")).status_code == 202
    changed = [{**MESSAGE, "subject": "Another"}] if second == first else [MESSAGE]
    answer = await post(client, [*changed, *[MESSAGE] * (second - 1)], Idempotency_Key="order-17")
    assert (answer.status_code, "came with other messages before" in answer.json()["error"]) == (409, True)
    assert len(states(connection)) == first


@pytest.mark.parametrize("key", ["", " ", "ü", "x" * 201])
async def test_a_key_that_is_none_is_refused(client, connection, key):
    answer = await client.post("/emails", json=[MESSAGE], headers={"Idempotency-Key": key.encode()})
    assert (answer.status_code, "1 to 200 visible ASCII characters" in answer.json()["error"]) == (400, True)
    assert states(connection) == {}


async def test_without_an_address_of_its_own_the_service_wants_one_of_each_message(comms_url, connection):
    async with serving(comms_url, sender=None) as client:
        answer = await post(client, [MESSAGE])
        assert (answer.status_code, answer.json()["faults"][0]["field"]) == (422, "from")
        assert (await post(client, [{**MESSAGE, "from": "me@example.com"}])).status_code == 202


async def test_attachments_are_kept_beside_the_queue(client, connection):
    attached = {"name": "a.pdf", "content_type": "application/pdf", "content": "aGVsbG8="}
    assert (await post(client, [{**MESSAGE, "attachments": [attached]}] * 2)).status_code == 202
    assert connection.execute("select content from headwater.email_content").fetchall() == [(b"hello",)]
    assert "content" not in jobs(connection)[0]["attachments"][0]


async def test_what_became_of_a_message_is_told_without_what_it_says(client, comms_url, connection, mail_server):
    mail_server.answers["MAIL"] = ["451 later"]
    full = {
        **MESSAGE,
        "cc": ["kim@example.com"],
        "bcc": ["ann@example.com"],
        "headers": {"X-Order": "17"},
        "attachments": [{"name": "a", "content": "aGVsbG8="}],
    }
    (job_id,) = (await post(client, [full], Idempotency_Key="order-17")).json()["ids"]
    before = (await client.get(f"/emails/{job_id}")).json()
    assert (before["state"], before["attempts"], before["finished_at"]) == ("scheduled", [], None)
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: states(connection) == {job_id: "done"})
    answer = await client.get(f"/emails/{job_id}")
    told = answer.json()
    assert (answer.status_code, told["id"], told["state"], told["error"]) == (200, job_id, "done", None)
    assert told["message"] == {
        "from": "Shop <shop@example.com>",
        "to": ["zoe@example.com"],
        "cc": ["kim@example.com"],
        "bcc": ["ann@example.com"],
        "subject": "Invoice 7",
    }
    assert [(one["attempt"], one["outcome"], one["code"]) for one in told["attempts"]] == [
        (1, "transient", 451),
        (2, "sent", 250),
    ]
    assert told["attempts"][1]["accepted"] == ["zoe@example.com", "kim@example.com", "ann@example.com"]
    assert "Pay, please." not in answer.text


async def test_a_message_that_failed_is_told_with_the_reason(client, comms_url, connection, mail_server):
    mail_server.refused = {"zoe@example.com": "550 no such user"}
    (job_id,) = (await post(client, [MESSAGE])).json()["ids"]
    async with consuming(comms_url, smtp_to(mail_server), quick()):
        await until(lambda: states(connection) == {job_id: "error"})
    told = (await client.get(f"/emails/{job_id}")).json()
    assert told["error"] == "550 refused for zoe@example.com: 550 no such user"
    assert told["attempts"][0]["refused"] == [{"address": "zoe@example.com", "code": 550, "response": "no such user"}]
    assert len(tried(connection)) == 1


@pytest.mark.parametrize("id_", ["1", "0", "-1", "x", "9" * 30, "1.0", "%00"])
async def test_a_message_that_is_not_there_is_not_found(client, id_):
    answer = await client.get(f"/emails/{id_}")
    assert (answer.status_code, "there is no e-mail with this id" in answer.json()["error"]) == (404, True)


async def test_jobs_of_other_kinds_are_not_shown(client, connection):
    connection.execute("insert into headwater.job (kind, payload) values ('secret', '{\"subject\": \"x\"}')")
    ((job_id,),) = connection.execute("select id from headwater.job").fetchall()
    assert (await client.get(f"/emails/{job_id}")).status_code == 404


async def test_with_a_token_only_those_who_have_it_are_answered(comms_url, connection):
    async with serving(comms_url, token=TOKEN) as client:
        for wrong in (None, "", TOKEN, f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ü"):
            headers = {} if wrong is None else {"Authorization": wrong.encode()}
            for answer in (
                await client.post("/emails", json=[MESSAGE], headers=headers),
                await client.get("/emails/1", headers=headers),
            ):
                assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
                assert TOKEN not in answer.text
        assert (await post(client, [MESSAGE], Authorization=f"Bearer {TOKEN}")).status_code == 202
    assert len(states(connection)) == 1


async def test_whether_the_token_is_missing_or_wrong_is_said(comms_url):
    missing = "this API needs a token, and none was sent; send it as `Authorization: Bearer TOKEN`"
    wrong = "the token that was sent is not the one of this API; send that of `token` in its [api]"
    async with serving(comms_url, token=TOKEN) as client:
        for sent, said in ((None, missing), ("Basic x", missing), ("Bearer ", missing), ("Bearer guess", wrong)):
            answer = await client.get("/emails/1", headers={} if sent is None else {"Authorization": sent})
            assert (answer.status_code, answer.json()) == (401, {"error": said})


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/mails", 404, "there is nothing at this path; there are /emails, /emails/{id}, /health"),
        ("GET", "/emails", 405, "this path does not take this method; it takes POST"),
        ("DELETE", "/emails/1", 405, "this path does not take this method; it takes GET, HEAD"),
    ],
)
async def test_what_is_not_there_is_told_as_any_other_fault_is(client, method, path, status, said):
    answer = await client.request(method, path)
    assert (answer.status_code, answer.json()) == (status, {"error": said})
    assert ("Allow" in answer.headers) == (status == 405)


async def test_while_the_database_is_away_nothing_is_accepted_and_afterwards_it_is(comms_url, connection, caplog):
    with Proxy(comms_url) as proxy:
        async with serving(proxy.url) as client:
            assert (await post(client, [MESSAGE])).status_code == 202
            assert await client.api.is_ready()
            proxy.refuse = True
            proxy.cut()
            assert not await client.api.is_ready()
            answers = [await post(client, [MESSAGE]), await post(client, [MESSAGE] * 2), await client.get("/emails/1")]
            assert [answer.status_code for answer in answers] == [503] * 3
            assert answers[0].headers["Retry-After"] == "1"
            assert "the database cannot be reached" in answers[0].json()["error"]
            password = comms_url.partition(":")[2].partition(":")[2].partition("@")[0]
            assert password not in caplog.text + answers[0].text
            proxy.refuse = False
            assert (await post(client, [MESSAGE] * 2)).status_code == 202
    assert len(states(connection)) == 3


async def test_a_database_that_gives_no_answer_is_not_waited_for_for_ever(comms_url, connection):
    with Proxy(comms_url) as proxy:
        async with serving(proxy.url, answer_within=timedelta(seconds=2), connections=1) as client:
            assert (await post(client, [MESSAGE] * 2)).status_code == 202
            proxy.freeze()
            assert (await post(client, [MESSAGE] * 2)).status_code == 503
            assert (await post(client, [MESSAGE] * 2)).status_code == 202
    assert len(states(connection)) == 4


async def test_a_single_message_whose_answer_was_lost_is_accepted_once(comms_url, connection):
    with Proxy(comms_url) as proxy:
        async with serving(proxy.url, timedelta(seconds=10)) as client:
            # From the third time on the statement is prepared, and takes one message to the server.
            for _ in range(3):
                assert (await post(client, [MESSAGE])).status_code == 202
            # The server commits it, and its answer is lost with the connection.
            proxy.mute = True
            asking = asyncio.create_task(post(client, [MESSAGE]))
            await until(lambda: len(states(connection)) == 4)
            proxy.mute = False
            proxy.cut()
            assert (await asking).status_code == 202
    assert len(states(connection)) == 4


async def test_single_messages_of_many_clients_share_commits(client, connection):
    answers = await asyncio.gather(*(post(client, [{**MESSAGE, "subject": str(n)}]) for n in range(100)))
    assert {answer.status_code for answer in answers} == {202}
    assert len(states(connection)) == 100
    ((commits,),) = connection.execute("select count(distinct xmin::text) from headwater.job").fetchall()
    assert commits < 50
