"""Capture over TLS: what the TLS layer holds back between reads must not be forgotten there."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headwater.capture import Capture
from headwater.embedded import EmbeddedPostgres
from headwater.embedded.account import postgres_account
from tests.support.capture.captured_database import collect, count, ids, prepare, row_after, settings
from tests.support.servers.embedded import fresh_database, postgres_settings, shared_place, skip_or_fail


@pytest.fixture
def certificate():
    """A certificate and its key, readable by whoever runs the server."""
    if shutil.which("openssl") is None:
        skip_or_fail("there is no openssl to make a certificate with: install openssl")
    folder = Path(tempfile.mkdtemp(dir=shared_place()))
    certificate, key = folder / "server.crt", folder / "server.key"
    command = ["openssl", "req", "-new", "-x509", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-out", str(certificate), "-keyout", str(key)], check=True, capture_output=True)
    account = postgres_account(folder / "none yet")
    if account is not None:
        for path in (folder, certificate, key):
            os.chown(path, account.uid, account.gid)
    key.chmod(0o600)
    yield certificate, key
    shutil.rmtree(folder)


@pytest.mark.timeout(60)
def test_large_and_small_values_come_whole_and_without_delay_over_tls(certificate):
    config = {"ssl": "on", "ssl_cert_file": str(certificate[0]), "ssl_key_file": str(certificate[1])}
    with EmbeddedPostgres(postgres_settings(15, **config)) as server, fresh_database(server.url) as plain:
        url = urlsplit(plain)._replace(query="sslmode=require").geturl()
        with prepare(url) as connection, Capture(settings(url)) as capture:
            assert connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone() == (True,)
            connection.execute("insert into item select g, repeat(md5(g::text), g) from generate_series(1, 1000) g")
            connection.execute("insert into item select g, 'small' from generate_series(1001, 20000) g")
            found = collect(capture, count(20000))
    assert ids(found) == list(range(1, 20001))
    assert [len(row_after(change)["v"]) for change in found[:1000]] == [32 * i for i in range(1, 1001)]
