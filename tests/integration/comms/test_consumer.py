"""From the queue to a mail server: what is tried again and what is not, who gets a message once, and what is on record."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headwater import comms
from headwater.comms.consumer import Consumer
from headwater.comms.mime import Letter
from headwater.comms.outcome import Outcome, Refused, Verdict, away, judge, transient
from headwater.comms.statements import Attempt, note_attempts
from headwater.comms.upkeep import Upkeep
from headwater.postgres.statements import fetch_sync
from tests.support.queue.email_consumers import consuming, quick, smtp_to, states, tried
from tests.support.queue.emails import email
from tests.support.servers.pooler import pooler
from tests.support.servers.smtp import DROP
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import until


class StubSender:
    """Gives the answers that it is told to."""

    name = "stub"

    def __init__(self, *answers: Outcome) -> None:
        self.answers = list(answers)
        self.letters: list[Letter] = []
        self.times: list[float] = []
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def send(self, letter) -> Outcome:
        self.letters.append(letter)
        self.times.append(time.monotonic())
        self.begun.set()
        await self.go_on.wait()
        if self.answers:
            return self.answers.pop(0)
        return Outcome(verdict=Verdict.SENT, code=250, accepted=tuple(one.address for one in letter.recipients))

    async def close(self) -> None:
        pass


async def test_what_is_committed_is_sent_once_and_put_on_record(comms_url, connection, mail_server):
    with connection.transaction():
        (job_id,) = comms.enqueue_sync(connection, [email("zoe@example.com", "kim@example.com")])
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: states(connection) == {job_id: "done"})
    assert [mail.recipients for mail in mail_server.mails] == [["zoe@example.com", "kim@example.com"]]
    ((found,),) = tried(connection, "row_to_json(email_attempt)")
    assert found["message_id"] == mail_server.mails[0].message["Message-ID"]
    assert (found["job_id"], found["attempt"], found["outcome"], found["code"]) == (job_id, 1, "sent", 250)
    assert (found["sender"], found["response"]) == (f"smtp 127.0.0.1:{mail_server.port}", "queued as 17")
    assert (found["accepted"], found["refused"]) == (["zoe@example.com", "kim@example.com"], [])


async def test_what_is_rolled_back_is_not_sent(comms_url, async_connection, connection, mail_server):
    with pytest.raises(ZeroDivisionError):
        async with async_connection.transaction():
            await comms.enqueue(async_connection, [email("never@example.com")])
            raise ZeroDivisionError
    (job_id,) = await comms.enqueue(async_connection, [email("zoe@example.com")])
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: states(connection) == {job_id: "done"})
    assert mail_server.recipients == ["zoe@example.com"]


async def test_what_passes_is_tried_again_under_the_same_message_id(comms_url, connection, mail_server):
    mail_server.answers["MAIL"] = ["451 later"]
    mail_server.answers["DATA"] = ["452 no space"]
    (job_id,) = comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: states(connection) == {job_id: "done"})
    assert tried(connection) == [(1, "transient", 451), (2, "transient", 452), (3, "sent", 250)]
    assert len(set(tried(connection, "message_id"))) == 1
    assert len(mail_server.mails) == 1


async def test_what_is_for_good_is_tried_once_and_kept_with_the_reason(comms_url, connection, mail_server):
    mail_server.answers["DATA"] = ["554 looks like spam"]
    (job_id,) = comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: states(connection) == {job_id: "error"})
    assert tried(connection) == [(1, "permanent", 554)]
    assert connection.execute("select error from headwater.job_dead").fetchall() == [("554 looks like spam",)]


async def test_after_so_many_attempts_it_is_given_up_and_kept(comms_url, connection, mail_server):
    mail_server.answers["MAIL"] = ["451 later"] * 5
    (job_id,) = comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, smtp_to(mail_server), quick(attempts=3)):
        await until(lambda: states(connection) == {job_id: "error"})
    assert tried(connection) == [(n, "transient", 451) for n in (1, 2, 3)]


async def test_who_was_accepted_gets_it_once_while_others_are_tried_again(comms_url, connection, mail_server):
    mail_server.refused = {"full@example.com": "452 mailbox full"}
    (job_id,) = comms.enqueue_sync(connection, [email("zoe@example.com", "full@example.com")])
    async with consuming(comms_url, smtp_to(mail_server), quick(attempts=100)):
        await until(lambda: len(tried(connection)) >= 2)
        mail_server.refused = {}
        await until(lambda: states(connection) == {job_id: "done"})
    assert mail_server.recipients == ["zoe@example.com", "full@example.com"]
    # Both are named in what each of them got.
    assert [mail.message["To"] for mail in mail_server.mails] == ["zoe@example.com, full@example.com"] * 2


async def test_who_was_refused_for_good_does_not_make_others_get_it_twice_when_it_is_retried(
    comms_url, connection, mail_server
):
    mail_server.refused = {"gone@example.com": "550 no such user"}
    (job_id,) = comms.enqueue_sync(connection, [email("zoe@example.com", "gone@example.com")])
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: states(connection) == {job_id: "error"})
        ((reason,),) = connection.execute("select error from headwater.job_dead").fetchall()
        assert reason == "550 refused for gone@example.com: 550 no such user; accepted for zoe@example.com"
        mail_server.refused = {}
        connection.execute("select headwater.queue_retry_1(array[%s])", [job_id])
        await until(lambda: states(connection) == {job_id: "done"})
    assert mail_server.recipients == ["zoe@example.com", "gone@example.com"]


async def test_who_was_refused_for_good_is_not_asked_for_again_while_others_are_tried_again(comms_url, connection):
    gone, full = Refused("gone@example.com", 550, "no such user"), Refused("full@example.com", 452, "mailbox full")
    sender = StubSender(
        judge(("zoe@example.com",), (gone, full), 250, "OK"), transient("later", 451), judge((), (full,), None, "")
    )
    (job_id,) = comms.enqueue_sync(connection, [email("gone@example.com", "zoe@example.com", "full@example.com")])
    async with consuming(comms_url, sender):
        await until(lambda: states(connection) == {job_id: "error"})
        assert [len(letter.recipients) for letter in sender.letters] == [3, 1, 1, 1]
        assert sender.letters[-1].recipients[0].address == "full@example.com"
        # It is named all the same: by every attempt, and in the end.
        assert tried(connection, "outcome, refused -> -1 ->> 'address', response")[1:] == [
            ("transient", "gone@example.com", "later; refused before for gone@example.com: 550 no such user"),
            (
                "transient",
                "gone@example.com",
                "refused for full@example.com: 452 mailbox full, gone@example.com: 550 no such user",
            ),
            (
                "permanent",
                "gone@example.com",
                "refused for gone@example.com: 550 no such user; accepted for full@example.com",
            ),
        ]
        # Who has it tried again means all who do not have it, for as long as it takes.
        sender.answers = [transient("later", 451)] * 5
        connection.execute("select headwater.queue_retry_1(array[%s])", [job_id])
        await until(lambda: states(connection) == {job_id: "done"})
    assert {one.address for letter in sender.letters[4:] for one in letter.recipients} == {"gone@example.com"}


async def test_a_message_that_was_given_up_is_offered_to_all_who_do_not_have_it_when_it_is_retried(comms_url, connection):
    gone, full = Refused("gone@example.com", 550, "no such user"), Refused("full@example.com", 452, "mailbox full")
    sender = StubSender(judge((), (gone, full), None, ""), judge((), (full,), None, ""))
    (job_id,) = comms.enqueue_sync(connection, [email("gone@example.com", "full@example.com")])
    async with consuming(comms_url, sender, quick(attempts=2)):
        await until(lambda: states(connection) == {job_id: "error"})
        connection.execute("select headwater.queue_retry_1(array[%s])", [job_id])
        await until(lambda: states(connection) == {job_id: "done"})
    assert [len(letter.recipients) for letter in sender.letters] == [2, 1, 2]


async def test_a_message_for_which_nobody_is_left_is_not_sent_to_nobody(comms_url, connection):
    (job_id,) = comms.enqueue_sync(connection, [email("zoe@example.com", "gone@example.com")])
    gone = Refused("gone@example.com", 550, "no such user")
    outcome = replace(judge(("zoe@example.com",), (gone,), 250, "OK"), verdict=Verdict.TRANSIENT)
    noted = Attempt(uuid4(), job_id, 0, datetime.now(UTC), timedelta(0), "stub", "<1@example.com>", outcome)
    fetch_sync(connection, note_attempts([noted]))
    sender = StubSender()
    async with consuming(comms_url, sender):
        await until(lambda: states(connection) == {job_id: "error"})
    assert sender.letters == []
    ((reason,),) = connection.execute("select error from headwater.job_dead").fetchall()
    assert reason == "550 refused for gone@example.com: 550 no such user; accepted for zoe@example.com"


async def test_what_is_on_record_as_sent_is_not_sent_again_though_its_mark_was_lost(comms_url, connection, caplog):
    (job_id,) = comms.enqueue_sync(connection, [email("zoe@example.com")])
    sender = StubSender()
    async with consuming(comms_url, sender):
        await until(lambda: states(connection) == {job_id: "done"})
    # As if its worker had died between the record and the mark.
    connection.execute(
        "insert into headwater.job (id, queue, kind, payload) overriding system value "
        "select id, queue, kind, payload from headwater.job_done"
    )
    connection.execute("delete from headwater.job_done")
    async with consuming(comms_url, sender) as consumer:
        await until(lambda: states(connection) == {job_id: "done"})
        assert consumer.counts.spared == 1
    assert len(sender.letters) == 1
    assert "it is not sent again" in caplog.text


async def test_a_connection_that_is_lost_after_the_message_was_taken_is_the_one_way_to_a_duplicate(
    comms_url, connection, mail_server
):
    mail_server.answers["STORED"] = [DROP]
    (job_id,) = comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: states(connection) == {job_id: "done"})
    first, second = mail_server.mails
    # By which a receiver can tell.
    assert first.message["Message-ID"] == second.message["Message-ID"]
    ((said,), _) = tried(connection, "response")
    assert "may have it" in said


async def test_an_attempt_that_takes_too_long_passes_and_is_on_record(comms_url, connection):
    sender = StubSender()
    sender.go_on.clear()
    comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, sender, quick(within=timedelta(milliseconds=100))):
        await until(lambda: tried(connection))
        sender.go_on.set()
        await until(lambda: set(states(connection).values()) == {"done"})
    assert tried(connection)[0][1] == "transient"
    assert tried(connection, "response")[0] == ("stub was not done within 0.1 s, and may have it",)


async def test_a_sender_that_fails_in_a_way_of_its_own_is_an_attempt_like_any_other(comms_url, connection):
    class Broken(StubSender):
        async def send(self, letter) -> Outcome:
            if not self.letters:
                self.letters.append(letter)
                raise ZeroDivisionError("oops")
            return await super().send(letter)

    comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, Broken()):
        await until(lambda: set(states(connection).values()) == {"done"})
    assert tried(connection, "outcome, response") == [("transient", "stub failed: ZeroDivisionError('oops')"), ("sent", "")]


async def test_while_the_database_is_away_what_was_sent_is_still_put_on_record(comms_url, connection, caplog):
    sender = StubSender()
    sender.go_on.clear()
    with Proxy(comms_url) as proxy:
        (job_id,) = comms.enqueue_sync(connection, [email()])
        async with consuming(proxy.url, sender):
            await sender.begun.wait()
            proxy.refuse = True
            proxy.cut()
            sender.go_on.set()
            await until(lambda: "headwater comms audit: asked again" in caplog.text)
            proxy.refuse = False
            await until(lambda: states(connection) == {job_id: "done"})
    assert (len(sender.letters), tried(connection)) == (1, [(1, "sent", 250)])


async def test_the_time_that_a_provider_asks_for_is_waited(comms_url, connection):
    sender = StubSender(transient("slow down", 429, timedelta(hours=1)))
    (job_id,) = comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, sender):
        await until(lambda: tried(connection) and states(connection) == {job_id: "scheduled"})
    ((wait,),) = connection.execute("select run_at - now() from headwater.job").fetchall()
    assert timedelta(minutes=59) < wait <= timedelta(hours=1)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ('{"to": ["zoe"], "text": "x"}', "to[0]: is no e-mail address"),
        ('"nonsense"', "must be an object"),
        ('{"to": ["zoe@example.com"], "text": "x"}', "from: is missing, and the service has none of its own"),
        (
            '{"from": "a@example.com", "to": ["zoe@example.com"], "attachments": [{"name": "a.pdf", "sha256": "00"}]}',
            "attachment 'a.pdf' is not kept any more",
        ),
    ],
)
async def test_a_job_that_is_no_message_is_put_aside_and_harms_no_other(comms_url, connection, mail_server, payload, said):
    connection.execute("insert into headwater.job (queue, kind, payload) values ('email', 'email', %s)", [payload])
    comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: sorted(states(connection).values()) == ["done", "error"])
    ((reason,),) = connection.execute("select error from headwater.job_dead").fetchall()
    assert said in reason
    assert sorted(tried(connection, "outcome")) == [("permanent",), ("sent",)]


async def test_a_message_of_a_bare_insert_is_from_the_service_s_own_address(comms_url, connection, mail_server):
    connection.execute(
        "insert into headwater.job (queue, kind, payload) values ('email', 'email', %s)",
        ['{"to": ["zoe@example.com"], "text": "x", "attachments": [{"name": "a", "content": "aGVsbG8="}]}'],
    )
    async with consuming(comms_url, smtp_to(mail_server), quick(sender="Shop <shop@example.com>")):
        await until(lambda: set(states(connection).values()) == {"done"})
    message = mail_server.mails[0].message
    assert message["From"] == "Shop <shop@example.com>"
    assert next(iter(message.iter_attachments())).get_content() == b"hello"


async def test_attachments_are_kept_once_and_sent_whole(comms_url, connection, mail_server):
    content = bytes(range(256)) * 12_000
    attached = [comms.Attachment.of("scan.pdf", content, "application/pdf")]
    emails = [email(f"a{n}@example.com", attachments=attached) for n in range(2)]
    with connection.transaction():
        comms.enqueue_sync(connection, emails)
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: list(states(connection).values()) == ["done", "done"])
    for mail in mail_server.mails:
        (part,) = mail.message.iter_attachments()
        assert (part.get_filename(), part.get_content_type(), part.get_content()) == ("scan.pdf", "application/pdf", content)
    assert connection.execute("select count(*) from headwater.email_content").fetchone() == (1,)


async def test_two_consumers_send_each_message_once(comms_url, connection, mail_server):
    comms.enqueue_sync(connection, [email(f"a{n}@example.com") for n in range(60)])
    async with consuming(comms_url, smtp_to(mail_server)), consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: set(states(connection).values()) == {"done"})
    assert sorted(mail_server.recipients) == sorted(f"a{n}@example.com" for n in range(60))


async def test_behind_a_pooler_messages_are_heard_of_past_it(comms_url, connection, mail_server):
    with pooler(comms_url) as (pooled, _):
        # Nothing is found by a poll.
        consumer = Consumer(pooled, smtp_to(mail_server), quick(poll=timedelta(seconds=600)), listen_url=comms_url)
        task = asyncio.create_task(consumer.run())
        try:
            # The second is when it listens.
            await until(lambda: consumer.worker.counts.sweeps >= 2)
            for n in range(3):
                comms.enqueue_sync(connection, [email(f"a{n}@example.com")])
                await until(lambda n=n: len(mail_server.mails) == n + 1)
        finally:
            consumer.stop()
            await task
    assert set(states(connection).values()) == {"done"}


async def test_no_more_messages_go_out_than_the_rate_allows(comms_url, connection):
    sender = StubSender()
    comms.enqueue_sync(connection, [email(f"a{n}@example.com") for n in range(5)])
    async with consuming(comms_url, sender, quick(rate=2.0)):
        await until(lambda: len(sender.letters) == 4)
    # Two at once, and then one each half of a second.
    ((took,),) = tried(connection, "max(at) over () - min(at) over ()")[:1]
    assert took >= timedelta(seconds=0.9)


async def test_while_the_provider_is_away_messages_wait_and_do_not_all_lose_an_attempt(comms_url, connection):
    sender = StubSender(*[away("nobody is there")] * 2)
    comms.enqueue_sync(connection, [email(f"a{n}@example.com") for n in range(10)])
    async with consuming(comms_url, sender, quick(concurrency=2)):
        await until(lambda: set(states(connection).values()) == {"done"})
    assert [outcome for (outcome,) in tried(connection, "outcome")].count("transient") == 2
    # Nothing was sent for a while after the first failure, whichever lane had it.
    assert max(later - earlier for earlier, later in pairwise(sender.times[:3])) > 0.4


async def test_stopping_finishes_what_is_on_its_way_and_leaves_the_rest(comms_url, connection):
    sender = StubSender()
    sender.go_on.clear()
    comms.enqueue_sync(connection, [email(f"a{n}@example.com") for n in range(20)])
    async with consuming(comms_url, sender, quick(concurrency=2)) as consumer:
        await until(lambda: len(sender.letters) == 2)
        consumer.stop()
        await until(lambda: list(states(connection).values()).count("scheduled") == 18)
        sender.go_on.set()
    found = list(states(connection).values())
    assert (found.count("done"), found.count("scheduled"), len(sender.letters)) == (2, 18, 2)
    # Those that were not begun have lost no attempt.
    assert connection.execute("select distinct attempt from headwater.job").fetchall() == [(0,)]


async def test_messages_that_wait_for_their_turn_hold_up_nobody_who_stops(comms_url, connection):
    sender = StubSender()
    comms.enqueue_sync(connection, [email(f"a{n}@example.com") for n in range(5)])
    async with consuming(comms_url, sender, quick(rate=0.001, concurrency=2, stop_within=timedelta(hours=1))) as consumer:
        await until(lambda: consumer._pausing)
    found = list(states(connection).values())
    assert (found.count("done"), found.count("scheduled"), len(sender.letters)) == (1, 4, 1)


async def test_messages_that_wait_for_the_provider_hold_up_nobody_who_stops(comms_url, connection):
    sender = StubSender(away("slow down", 429, timedelta(hours=1)))
    comms.enqueue_sync(connection, [email(f"a{n}@example.com") for n in range(5)])
    async with consuming(comms_url, sender, quick(concurrency=1, stop_within=timedelta(hours=1))) as consumer:
        await until(lambda: consumer._pausing)
    assert (list(states(connection).values()), len(sender.letters)) == (["scheduled"] * 5, 1)


async def test_an_attempt_that_is_cut_off_is_on_record(comms_url, connection):
    sender = StubSender()
    sender.go_on.clear()
    comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, sender, quick(stop_within=timedelta(milliseconds=50))):
        await sender.begun.wait()
    assert tried(connection, "outcome, response") == [
        ("transient", "the attempt was cut off while the message was sent, and the provider may have it")
    ]
    assert set(states(connection).values()) == {"scheduled"}


async def test_an_attempt_whose_answer_was_lost_is_noted_once(comms_url, connection, monkeypatch):
    comms.enqueue_sync(connection, [email()])
    notes = []
    async with consuming(comms_url, StubSender()) as consumer:
        noting = consumer._audit._session.insist

        async def twice(statement, *rest):
            if statement.name == "note_attempts":
                notes.append(statement)
            return await noting(statement, *rest)

        monkeypatch.setattr(consumer._audit._session, "insist", twice)
        await until(lambda: set(states(connection).values()) == {"done"})
    fetch_sync(connection, notes[0])
    assert len(tried(connection)) == 1
    assert note_attempts([]).name == notes[0].name


async def test_a_trace_goes_from_the_transaction_to_the_provider(comms_url, connection, monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # Its own setter works once in a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    with trace.get_tracer("test").start_as_current_span("request") as request:
        comms.enqueue_sync(connection, [email()])
    comms.enqueue_sync(connection, [email()])
    async with consuming(comms_url, StubSender(transient("later", 451))):
        await until(lambda: set(states(connection).values()) == {"done"})
    sends = [
        span
        for span in exporter.get_finished_spans()
        if span.name == "send" and span.context.trace_id == request.get_span_context().trace_id
    ]
    attributes = [dict(span.attributes or {}) for span in sends]
    assert {one["headwater.outcome"] for one in attributes} >= {"sent"}
    assert attributes[-1]["headwater.sender"] == "stub"
    assert "example.com" not in str(attributes)


async def test_old_attempts_and_attachments_are_removed(comms_url, connection):
    comms.enqueue_sync(connection, [email(attachments=[{"name": "a", "content": "aGVsbG8="}])])
    async with consuming(comms_url, StubSender()):
        await until(lambda: set(states(connection).values()) == {"done"})
    connection.execute("update headwater.email_attempt set at = at - interval '31 days'")
    connection.execute("update headwater.email_content set used_at = used_at - interval '31 days'")
    async with consuming(comms_url, StubSender()):
        await until(lambda: tried(connection) == [])
        await until(lambda: contents(connection) == [])


def contents(connection):
    return connection.execute("select content from headwater.email_content order by content").fetchall()


def made_old(connection):
    """As if everything had been done a month ago."""
    connection.execute("update headwater.email_attempt set at = at - interval '31 days'")
    connection.execute("update headwater.email_content set used_at = used_at - interval '31 days'")
    connection.execute("update headwater.job set created_at = created_at - interval '31 days'")
    connection.execute("update headwater.job_dead set created_at = created_at - interval '31 days'")


async def looked_after(connection, url):
    """What is to be removed is, and the rest was looked at: of the same batch, something nobody needs."""
    store = "insert into headwater.email_content (digest, content, used_at) values ('none', '', now() - interval '31 days')"
    connection.execute(store)
    async with Upkeep(url, timedelta(days=30), timedelta(seconds=30)):
        await until(lambda: (b"",) not in contents(connection))


async def test_what_may_be_sent_yet_keeps_its_attachments_and_who_has_it_and_what_is_purged_does_not(
    comms_url, connection, mail_server
):
    mail_server.refused = {"gone@example.com": "550 no such user"}
    (dead,) = comms.enqueue_sync(
        connection, [email("zoe@example.com", "gone@example.com", attachments=[comms.Attachment.of("a", b"dead")])]
    )
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: states(connection) == {dead: "error"})
    comms.enqueue_sync(connection, [email(attachments=[comms.Attachment.of("a", b"waits")])])
    connection.execute("insert into headwater.job (queue, kind, payload) values ('email', 'email', '{\"attachments\": 7}')")
    made_old(connection)
    await looked_after(connection, comms_url)
    assert (contents(connection), len(tried(connection))) == ([(b"dead",), (b"waits",)], 1)
    mail_server.refused = {}
    connection.execute("select headwater.queue_retry_1(array[%s])", [dead])
    # Also between the retry and the attempt.
    await looked_after(connection, comms_url)
    async with consuming(comms_url, smtp_to(mail_server)):
        await until(lambda: sorted(states(connection).values()) == ["done", "done", "error"])
    assert sorted(mail_server.recipients) == ["gone@example.com", "zoe@example.com", "zoe@example.com"]
    made_old(connection)
    await looked_after(connection, comms_url)
    # That of the message which is none.
    assert (contents(connection), len(tried(connection))) == ([], 1)
    connection.execute("delete from headwater.job_dead")
    await looked_after(connection, comms_url)
    assert tried(connection) == []
