import socket
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest

from headwater.brokers.nats import Link, NatsAccess, Publisher
from headwater.brokers.nats.connection import connect
from headwater.embedded.process import free_port
from headwater.errors import BrokerError, BrokerUnavailable
from tests.support.brokers.nats_credentials import ACCOUNT, OPERATOR, USER, Nkey, certify, credentials
from tests.support.brokers.nats_messages import fresh_stream, numbered, outgoing
from tests.support.servers.embedded import ConfiguredNats
from tests.support.servers.tcp_proxy import Proxy

SOON = timedelta(seconds=5)


def knock(access: NatsAccess) -> int:
    """Get in and ask for something; the server's max_payload."""
    with Link(access) as link:
        assert link.ask("nobody.listens", b"") is None
        return link.max_payload


def test_a_request_is_answered(link):
    assert b'"type":"io.nats.jetstream.api.v1.account_info_response"' in link.request("$JS.API.INFO", b"")


def test_a_request_that_nobody_listens_to_is_an_error_at_once(link):
    with pytest.raises(BrokerUnavailable, match=r"nobody answers requests on 'nobody\.listens'"):
        link.request("nobody.listens", b"")


async def test_a_request_that_nobody_answers_is_an_error_once_the_time_is_up(access, hasty):
    client = await connect(access)
    await client.subscribe("deaf.ears")
    await client.flush()
    with Link(hasty) as link, pytest.raises(BrokerUnavailable, match=r"no answer .* on 'deaf\.ears' within 2 s"):
        link.request("deaf.ears", b"")
    await client.close()


def test_a_link_that_was_cut_while_nobody_used_it_opens_again(nats, access):
    with Proxy(nats.url) as proxy, Link(replace(access, url=proxy.url)) as link:
        link.request("$JS.API.INFO", b"")
        proxy.cut()
        assert b"account_info_response" in link.request("$JS.API.INFO", b"")


def test_the_next_server_is_tried_when_the_first_is_dead(nats, access):
    knock(replace(access, url=f"nats://127.0.0.1:{free_port()},{nats.url}"))


def test_servers_that_are_all_dead_are_all_named(access):
    ports = [free_port(), free_port()]
    with pytest.raises(BrokerUnavailable) as refusal:
        Link(replace(access, url=",".join(f"nats://127.0.0.1:{port}" for port in ports)))
    assert all(f"cannot reach NATS at 127.0.0.1:{port}: Connection refused" in str(refusal.value) for port in ports)


def test_a_host_that_has_no_address_is_an_error(access):
    with pytest.raises(BrokerUnavailable, match=r"cannot reach NATS at nowhere\.invalid:4222"):
        Link(replace(access, url="nats://nowhere.invalid"))


@pytest.mark.parametrize(
    ("greeting", "kind", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", BrokerError, "does not speak the NATS protocol"),
        (b"", BrokerUnavailable, "hung up before it let us in"),
        (None, BrokerUnavailable, "no answer within 1 s"),
    ],
)
def test_what_is_no_nats_server_is_told_apart(greeting, kind, message):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        peers: list[socket.socket] = []

        def greet() -> None:
            peer, _ = listener.accept()
            peers.append(peer)
            if greeting is not None:
                peer.sendall(greeting)
                peer.close()

        greeter = Thread(target=greet)
        greeter.start()
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(kind, match=message):
            Link(NatsAccess(url=url, timeout=timedelta(seconds=1)))
        greeter.join()
        peers[0].close()


async def test_user_and_password_let_in_from_settings_and_from_the_url():
    authorization = {"user": "m@e", "password": "s/cr:t"}
    with ConfiguredNats(authorization=authorization) as server:
        for access in (
            NatsAccess(url=f"nats://{server.address}", user="m@e", password="s/cr:t", timeout=SOON),
            NatsAccess(url=f"nats://m%40e:s%2Fcr%3At@{server.address}", timeout=SOON),
        ):
            knock(access)
            await (await connect(access)).close()


async def test_a_token_lets_in_from_settings_and_from_the_url():
    with ConfiguredNats(authorization={"token": "s3cret"}) as server:
        for access in (
            NatsAccess(url=f"nats://{server.address}", token="s3cret", timeout=SOON),
            NatsAccess(url=f"nats://s3cret@{server.address}", timeout=SOON),
        ):
            knock(access)
            await (await connect(access)).close()


@pytest.mark.parametrize(
    ("authorization", "given", "advice"),
    [
        ({"user": "me", "password": "right"}, {"user": "me", "password": "hidden"}, "check user and password"),
        ({"user": "me", "password": "right"}, {}, "give user and password"),
        ({"token": "right"}, {"token": "hidden"}, "check the token"),
    ],
)
async def test_wrong_secrets_are_refused_without_being_repeated(authorization, given, advice):
    with ConfiguredNats(authorization=authorization) as server:
        access = NatsAccess(url=f"nats://{server.address}", timeout=SOON, **given)
        with pytest.raises(BrokerError, match=f"Authorization Violation.*{advice}") as refusal:
            Link(access)
        assert not refusal.value.retryable
        assert "hidden" not in str(refusal.value)
        with pytest.raises(BrokerError, match=advice):
            await connect(access)


async def test_an_nkey_lets_in_and_another_one_does_not(tmp_path):
    right, wrong = Nkey.new(USER), Nkey.new(USER)
    (tmp_path / "right.nk").write_text(right.seed)
    (tmp_path / "wrong.nk").write_text(wrong.seed)
    with ConfiguredNats(authorization={"users": [{"nkey": right.public}]}) as server:
        access = NatsAccess(url=f"nats://{server.address}", nkey_file=str(tmp_path / "right.nk"), timeout=SOON)
        knock(access)
        await (await connect(access)).close()
        with pytest.raises(BrokerError, match=r"public key of the seed in .*wrong\.nk"):
            Link(replace(access, nkey_file=str(tmp_path / "wrong.nk")))


async def test_credentials_of_a_known_account_let_in_and_those_of_another_do_not(tmp_path):
    operator, account, other = Nkey.new(OPERATOR), Nkey.new(ACCOUNT), Nkey.new(ACCOUNT)
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    account_jwt = operator.token(
        account.public, "account", {"type": "account", "version": 2, "limits": {**unlimited, "wildcards": True}}
    )
    for issuer, name in ((account, "right.creds"), (other, "wrong.creds")):
        user = Nkey.new(USER)
        claims: dict[str, object] = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
        (tmp_path / name).write_text(credentials(issuer.token(user.public, "user", claims), user.seed))
    config: dict[str, Any] = {
        "authorization": None,
        "jetstream": None,
        "operator": operator.token(operator.public, "operator", {"type": "operator", "version": 2}),
        "resolver": "MEMORY",
        "resolver_preload": {account.public: account_jwt},
    }
    with ConfiguredNats(**config) as server:
        access = NatsAccess(url=f"nats://{server.address}", creds_file=str(tmp_path / "right.creds"), timeout=SOON)
        knock(access)
        await (await connect(access)).close()
        with pytest.raises(BrokerError, match=r"credentials in .*wrong\.creds"):
            Link(replace(access, creds_file=str(tmp_path / "wrong.creds")))


@pytest.mark.parametrize("is_tls_first", [False, True])
async def test_tls_carries_everything(tmp_path, is_tls_first):
    certify(tmp_path, "server")
    tls = {"cert_file": str(tmp_path / "server.pem"), "key_file": str(tmp_path / "server.key")}
    with ConfiguredNats(authorization=None, tls={**tls, "handshake_first": is_tls_first}) as server:
        access = NatsAccess(
            url=f"tls://{server.address}", tls_ca=str(tmp_path / "ca.pem"), is_tls_first=is_tls_first, timeout=SOON
        )
        with fresh_stream(access) as stream, Publisher(access) as publisher:
            payloads = [*numbered(20_000), b"x" * 900_000]
            assert publisher.publish(outgoing(stream.subject("a"), payloads)).stored == len(payloads)
            assert stream.payloads() == payloads
        await (await connect(access)).close()


def test_a_server_that_wants_tls_gets_it_without_being_asked_for(tmp_path):
    certify(tmp_path, "server")
    tls = {"cert_file": str(tmp_path / "server.pem"), "key_file": str(tmp_path / "server.key")}
    with ConfiguredNats(authorization=None, tls=tls) as server:
        with pytest.raises(BrokerError, match=r"no TLS with the NATS server .* give the authority that signed it as tls_ca"):
            Link(NatsAccess(url=f"nats://{server.address}", timeout=SOON))


def test_a_certificate_for_another_host_is_refused(tmp_path):
    certify(tmp_path, "server", "elsewhere.example")
    tls = {"cert_file": str(tmp_path / "server.pem"), "key_file": str(tmp_path / "server.key")}
    with ConfiguredNats(authorization=None, tls=tls) as server:
        with pytest.raises(BrokerError, match="a host name that it is for"):
            Link(NatsAccess(url=f"tls://{server.address}", tls_ca=str(tmp_path / "ca.pem"), timeout=SOON))


def test_a_server_that_asks_for_a_certificate_gets_ours(tmp_path):
    certify(tmp_path, "server")
    certify(tmp_path, "client")
    ca = str(tmp_path / "ca.pem")
    tls = {
        "cert_file": str(tmp_path / "server.pem"),
        "key_file": str(tmp_path / "server.key"),
        "ca_file": ca,
        "verify": True,
    }
    with ConfiguredNats(authorization=None, tls=tls) as server:
        access = NatsAccess(url=f"tls://{server.address}", tls_ca=ca, timeout=SOON)
        with pytest.raises(BrokerError, match=r"no TLS with the NATS server .* check tls_ca, tls_cert and tls_key"):
            knock(access)
        knock(replace(access, tls_cert=str(tmp_path / "client.pem"), tls_key=str(tmp_path / "client.key")))


async def test_a_server_without_tls_is_refused_when_tls_is_asked_for(nats, access):
    wanted = replace(access, url=nats.url.replace("nats://", "tls://"))
    with pytest.raises(BrokerError, match="offers no TLS"):
        Link(wanted)
    with pytest.raises(BrokerError, match="offers no TLS"):
        await connect(wanted)


async def test_nats_py_is_not_let_go_on_without_tls_where_the_server_only_offers_it(tmp_path):
    certify(tmp_path, "server")
    tls = {"cert_file": str(tmp_path / "server.pem"), "key_file": str(tmp_path / "server.key")}
    with ConfiguredNats(authorization=None, tls=tls, allow_non_tls=True) as server:
        access = NatsAccess(url=f"tls://{server.address}", tls_ca=str(tmp_path / "ca.pem"), timeout=SOON)
        knock(access)
        with pytest.raises(BrokerError, match="does not insist on TLS"):
            await connect(access)


def test_an_inbox_that_the_user_may_not_read_is_named_and_another_prefix_helps():
    permissions = {"subscribe": {"allow": ["_MINE.>"]}}
    users = {"users": [{"user": "me", "password": "secret", "permissions": permissions}]}
    with ConfiguredNats(authorization=users) as server:
        access = NatsAccess(url=f"nats://me:secret@{server.address}", timeout=SOON)
        with Link(access) as link, pytest.raises(BrokerError, match=r"subscribe to '_INBOX\..*set inbox_prefix"):
            link.request("$JS.API.INFO", b"")
        with Link(replace(access, inbox_prefix="_MINE")) as link:
            assert link.request("$JS.API.INFO", b"")


async def test_nats_py_comes_in_with_the_same_access(access, stream):
    client = await connect(access, name="other")
    await client.jetstream().publish(stream.subject("a"), b"hello")
    await client.close()
    assert stream.payloads() == [b"hello"]
