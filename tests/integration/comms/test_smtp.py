"""Sending by SMTP against a real server: connections that are kept, answers and what they mean, encryption and login."""

from datetime import timedelta

import pytest

from headwater.comms.outcome import Verdict
from headwater.comms.smtp import SmtpSender
from headwater.comms.smtp_settings import SmtpSettings, Tls
from tests.support.brokers.nats_credentials import certify
from tests.support.queue.emails import letter
from tests.support.servers.smtp import DROP, MailServer
from tests.support.topics.subscribers import until


@pytest.fixture
def server():
    with MailServer() as server:
        yield server


@pytest.fixture
async def sender_to():
    """Makes senders, and closes them."""
    made: list[SmtpSender] = []

    def make(server, **changes):
        chosen = {"host": "127.0.0.1", "port": server.port, "tls": Tls.NONE, "timeout": timedelta(seconds=5), **changes}
        made.append(SmtpSender(SmtpSettings(**chosen)))
        return made[-1]

    yield make
    for sender in made:
        await sender.close()


@pytest.fixture
def certificate(tmp_path):
    certify(tmp_path, "mail")
    return tmp_path / "mail"


async def test_a_message_arrives_with_its_parts_and_without_its_blind_copies(server, sender_to):
    sent = letter(
        "Zoë <zoe@bücher.example>",
        cc=["kim@example.com"],
        bcc=["hidden@example.com"],
        subject="Rechnung für März",
        text="Grüße\n.\nEnde",
        html="<p>Grüße</p>",
        headers={"X-Order": "17", "Reply-To": "Ann <ann@example.com>"},
        attachments=[{"name": "März.csv", "content_type": "text/csv; charset=utf-8", "content": "MSwyCg=="}],
    )
    outcome = await sender_to(server).send(sent)
    assert (outcome.verdict, outcome.code, outcome.response) == (Verdict.SENT, 250, "queued as 17")
    assert outcome.accepted == ("zoe@xn--bcher-kva.example", "kim@example.com", "hidden@example.com")
    (mail,) = server.mails
    assert (mail.sender, tuple(mail.recipients)) == ("shop@example.com", outcome.accepted)
    assert b"hidden" not in mail.content
    message = mail.message
    assert (message["Subject"], message["X-Order"], message["Message-ID"]) == ("Rechnung für März", "17", sent.message_id)
    assert message["To"].addresses[0].display_name == "Zoë"
    assert message["Reply-To"].addresses[0].addr_spec == "ann@example.com"
    assert message.get_body(("plain",)).get_content().splitlines() == ["Grüße", ".", "Ende"]
    assert message.get_body(("html",)).get_content().splitlines() == ["<p>Grüße</p>"]
    (attached,) = message.iter_attachments()
    assert (attached.get_filename(), attached.get_content()) == ("März.csv", "1,2\n")


async def test_messages_one_after_the_other_share_a_connection(server, sender_to):
    sender = sender_to(server)
    for job_id in range(5):
        assert (await sender.send(letter(job_id=job_id))).verdict is Verdict.SENT
    assert (len(server.mails), server.connections) == (5, 1)


async def test_a_connection_is_left_after_so_many_messages(server, sender_to):
    sender = sender_to(server, messages_per_connection=2)
    for job_id in range(5):
        assert (await sender.send(letter(job_id=job_id))).verdict is Verdict.SENT
    assert [mail.connection for mail in server.mails] == [1, 1, 2, 2, 3]


async def test_a_connection_that_nobody_uses_is_closed(server, sender_to):
    sender = sender_to(server, idle=timedelta(milliseconds=50))
    await sender.send(letter())
    await until(lambda: not sender._pool._idle)
    assert (await sender.send(letter())).verdict is Verdict.SENT
    assert server.connections == 2


async def test_a_kept_connection_that_died_is_replaced_and_nobody_gets_it_twice(server, sender_to):
    sender = sender_to(server)
    await sender.send(letter(job_id=1))
    server.cut()
    assert (await sender.send(letter(job_id=2))).verdict is Verdict.SENT
    assert (len(server.mails), server.connections) == (2, 2)


@pytest.mark.parametrize("step", ["MAIL", "RCPT"])
@pytest.mark.parametrize("answer", [DROP, "421 too long idle"])
async def test_a_kept_connection_that_is_lost_before_the_message_is_sent_is_replaced(server, sender_to, step, answer):
    sender = sender_to(server)
    await sender.send(letter(job_id=1))
    server.answers[step] = [answer]
    assert (await sender.send(letter(job_id=2))).verdict is Verdict.SENT
    assert (len(server.mails), server.connections) == (2, 2)


async def test_a_new_connection_that_is_lost_before_the_message_is_sent_passes(server, sender_to):
    server.answers["MAIL"] = [DROP]
    outcome = await sender_to(server).send(letter())
    assert (outcome.verdict, outcome.accepted, server.mails) == (Verdict.TRANSIENT, (), [])
    assert "went away before the message was sent" in outcome.response


async def test_a_connection_that_is_lost_after_the_message_was_sent_says_that_the_server_may_have_it(server, sender_to):
    server.answers["STORED"] = [DROP]
    outcome = await sender_to(server).send(letter())
    assert (outcome.verdict, outcome.code, len(server.mails)) == (Verdict.TRANSIENT, None, 1)
    assert "may have it" in outcome.response


async def test_a_server_that_gives_no_answer_is_given_up_after_the_timeout(server, sender_to):
    server.held.clear()
    outcome = await sender_to(server, timeout=timedelta(milliseconds=200)).send(letter())
    assert outcome.verdict is Verdict.TRANSIENT
    assert "may have it" in outcome.response
    server.held.set()


async def test_nobody_listens_is_passing(sender_to):
    with MailServer() as gone:
        pass
    outcome = await sender_to(gone).send(letter())
    assert (outcome.verdict, outcome.code, outcome.is_away) == (Verdict.TRANSIENT, None, True)
    assert str(gone.port) in outcome.response


@pytest.mark.parametrize(
    ("step", "answer", "verdict"),
    [
        ("GREETING", "554 no service for you", Verdict.TRANSIENT),
        ("GREETING", "421 too busy", Verdict.TRANSIENT),
        ("MAIL", "451 later", Verdict.TRANSIENT),
        ("MAIL", "530 log in first", Verdict.TRANSIENT),
        ("MAIL", "553 not with this sender", Verdict.PERMANENT),
        ("RCPT", "450 mailbox busy", Verdict.TRANSIENT),
        ("RCPT", "550 no such user", Verdict.PERMANENT),
        ("DATA", "452 no space", Verdict.TRANSIENT),
        ("DATA", "554 looks like spam", Verdict.PERMANENT),
    ],
)
async def test_codes_from_500_are_for_good_unless_they_are_about_us(server, sender_to, step, answer, verdict):
    server.answers[step] = [answer]
    sender = sender_to(server)
    outcome = await sender.send(letter())
    assert (outcome.verdict, outcome.code, outcome.accepted) == (verdict, int(answer[:3]), ())
    assert answer[4:] in outcome.response
    assert outcome.is_away is (step == "GREETING" or "log in" in answer)
    # The next message is not harmed by it.
    assert (await sender.send(letter(job_id=8))).verdict is Verdict.SENT
    assert len(server.mails) == 1


async def test_who_was_refused_is_said_and_who_was_accepted_gets_it_once(server, sender_to):
    server.refused = {"gone@example.com": "550 no such user", "full@example.com": "452 mailbox full"}
    sent = letter("zoe@example.com", "gone@example.com", "full@example.com")
    outcome = await sender_to(server).send(sent)
    assert (outcome.verdict, outcome.accepted) == (Verdict.TRANSIENT, ("zoe@example.com",))
    assert [(one.address, one.code, one.is_permanent) for one in outcome.refused] == [
        ("gone@example.com", 550, True),
        ("full@example.com", 452, False),
    ]
    assert "full@example.com: 452 mailbox full" in outcome.response
    assert server.recipients == ["zoe@example.com"]


async def test_when_all_that_are_left_are_refused_for_good_it_is_for_good(server, sender_to):
    server.refused = {"gone@example.com": "550 no such user"}
    outcome = await sender_to(server).send(letter("zoe@example.com", "gone@example.com"))
    assert (outcome.verdict, outcome.accepted) == (Verdict.PERMANENT, ("zoe@example.com",))
    assert outcome.response == "refused for gone@example.com: 550 no such user; accepted for zoe@example.com"


async def test_starttls_encrypts_before_anything_is_said(certificate, sender_to):
    with MailServer(certificate=certificate, starttls=True) as server:
        sender = sender_to(server, tls=Tls.STARTTLS, tls_ca=str(certificate.parent / "ca.pem"))
        assert (await sender.send(letter())).verdict is Verdict.SENT
        assert server.mails[0].is_encrypted


async def test_tls_from_the_beginning(certificate, sender_to):
    with MailServer(certificate=certificate) as server:
        sender = sender_to(server, tls=Tls.TLS, tls_ca=str(certificate.parent / "ca.pem"))
        assert (await sender.send(letter())).verdict is Verdict.SENT
        assert server.mails[0].is_encrypted
        await sender.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused(certificate, sender_to):
    with MailServer(certificate=certificate, starttls=True) as server:
        outcome = await sender_to(server, tls=Tls.STARTTLS).send(letter())
        assert (outcome.verdict, server.mails) == (Verdict.TRANSIENT, [])
        assert "certificate" in outcome.response.lower()


async def test_a_server_without_encryption_is_not_told_anything_if_encryption_is_wanted(server, sender_to):
    outcome = await sender_to(server, tls=Tls.STARTTLS).send(letter())
    assert (outcome.verdict, server.mails) == (Verdict.TRANSIENT, [])
    assert "STARTTLS" in outcome.response
    assert "MAIL" not in server.commands


async def test_a_login_is_used(sender_to):
    with MailServer(login=("shop", "hidden-word")) as server:
        outcome = await sender_to(server, user="shop", password="hidden-word").send(letter())
        assert (outcome.verdict, server.mails[0].login) == (Verdict.SENT, "shop")


async def test_a_login_that_is_refused_is_no_fault_of_the_message_and_is_not_repeated_in_words(sender_to, caplog):
    with MailServer(login=("shop", "right-word")) as server:
        sender = sender_to(server, user="shop", password="hidden-word")
        outcome = await sender.send(letter())
        assert (outcome.verdict, outcome.code, server.mails) == (Verdict.TRANSIENT, 535, [])
        assert "does not take messages at the moment" in caplog.text
        assert "hidden-word" not in caplog.text + repr(outcome) + repr(sender._settings)


async def test_a_server_that_repeats_our_password_is_not_quoted(server, sender_to):
    server.answers["MAIL"] = ["550 who is hidden-word?"]
    outcome = await sender_to(server, user=None, password=None).send(letter())
    assert outcome.response == "who is hidden-word?"
    with MailServer(login=("shop", "hidden-word")) as other:
        other.answers["MAIL"] = ["550 who is hidden-word?"]
        outcome = await sender_to(other, user="shop", password="hidden-word").send(letter())
    assert outcome.response == "who is ***?"
