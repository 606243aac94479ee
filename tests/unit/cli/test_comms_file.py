"""The file of `headwater comms serve`: what it may say, and what is said of one that is wrong."""

import subprocess
import sys
from dataclasses import fields
from datetime import timedelta

import pytest

from headwater.cli.comms_file import ApiSection, HttpSection, Role, SendSection, SmtpSection, load_comms
from headwater.comms.http_settings import HttpSettings
from headwater.comms.settings import ApiSettings, SendSettings
from headwater.comms.smtp_settings import SmtpSettings, Tls
from headwater.errors import SettingsError

SMTP = '[smtp]\nhost = "smtp.example.com"\nuser = "shop"\npassword = "${SECRET}"\n'
HTTP = '[http]\nurl = "https://api.example.com/v1/mail?key=${SECRET}"\nheaders.Authorization = "Bearer ${SECRET}"\n'


def load(tmp_path, text, role=Role.BOTH, listen=None, listen_url=None, **environ):
    path = tmp_path / "comms.toml"
    path.write_text(text)
    return load_comms(path, {"SECRET": "hidden-word-of-16", **environ}, role, listen, listen_url)


def refusal(tmp_path, text, role=Role.BOTH):
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, role)
    assert "hidden" not in str(caught.value)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_a_file_needs_to_say_by_what_is_sent_and_nothing_else(tmp_path):
    found = load(tmp_path, SMTP)
    assert isinstance(found.by, SmtpSettings)
    assert (found.by.port, found.by.tls, found.by.password) == (587, Tls.STARTTLS, "hidden-word-of-16")
    assert (found.url, found.listen, found.api, found.send) == ("", "127.0.0.1:8025", ApiSettings(), SendSettings())


def test_a_producer_needs_nothing_and_a_consumer_listens_only_if_it_is_told_to(tmp_path):
    assert load(tmp_path, "", Role.PRODUCER).by is None
    assert load(tmp_path, SMTP, Role.CONSUMER).listen is None
    assert load(tmp_path, SMTP, Role.CONSUMER, "127.0.0.1:1").listen == "127.0.0.1:1"
    assert load(tmp_path, f'listen = "127.0.0.1:2"\n{SMTP}', Role.CONSUMER).listen == "127.0.0.1:2"


@pytest.mark.parametrize("by", [SMTP, HTTP])
def test_no_secret_is_shown(tmp_path, by):
    found = load(tmp_path, f'[api]\ntoken = "${{SECRET}}"\n{by}')
    assert found.api.token == "hidden-word-of-16"
    assert found.by is not None
    assert "hidden" not in repr(found) + found.by.describe()


def test_without_a_database_in_the_file_it_is_that_of_the_environment(tmp_path):
    url = "postgresql://mailer@db.example.com/shop"
    assert load(tmp_path, SMTP, HEADWATER_URL=url).url == url
    assert load(tmp_path, f'url = "postgresql://other/x"\n{SMTP}', HEADWATER_URL=url).url == "postgresql://other/x"


def test_a_way_past_a_pooler_may_be_given_in_the_file_or_beside_it(tmp_path):
    direct = "postgresql://mailer@db.example.com/shop"
    assert load(tmp_path, SMTP).listen_url is None
    assert load(tmp_path, f'listen_url = "{direct}"\n{SMTP}').listen_url == direct
    assert load(tmp_path, f'listen_url = "postgresql://other/x"\n{SMTP}', listen_url=direct).listen_url == direct


def test_every_setting_can_be_written(tmp_path):
    common = {"sender", "queue", "answer_within"}
    for section, settings in ((ApiSection, ApiSettings), (SendSection, SendSettings)):
        assert set(section.model_fields) == {one.name for one in fields(settings)} - common
    for provider, of_provider in ((SmtpSection, SmtpSettings), (HttpSection, HttpSettings)):
        assert list(provider.model_fields) == [one.name for one in fields(of_provider)]
    found = load(
        tmp_path,
        f"""from = "Shop <shop@example.com>"
queue = "letters"
[api]
max_bytes = "1MiB"
max_messages = 10
[send]
concurrency = 2
rate = "120/m"
within = "10s"
attempts = 3
retry_first = "1s"
retry_longest = "1m"
keep = "7d"
{SMTP}tls = "tls"
timeout = "5s"
""",
    )
    assert found.api == ApiSettings(sender="Shop <shop@example.com>", queue="letters", max_bytes=1024**2, max_messages=10)
    assert found.send == SendSettings(
        sender="Shop <shop@example.com>",
        queue="letters",
        concurrency=2,
        rate=2.0,
        within=timedelta(seconds=10),
        attempts=3,
        retry_first=timedelta(seconds=1),
        retry_longest=timedelta(minutes=1),
        keep=timedelta(days=7),
    )
    assert isinstance(found.by, SmtpSettings)
    assert (found.by.port, found.by.timeout) == (465, timedelta(seconds=5))


def test_an_http_api_has_headers_and_a_form(tmp_path):
    found = load(tmp_path, f'{HTTP}[http.body]\nto = "{{to:object}}"\nlabels = ["x"]\n').by
    assert isinstance(found, HttpSettings)
    assert (found.headers, found.body) == (
        {"Authorization": "Bearer hidden-word-of-16"},
        {"to": "{to:object}", "labels": ["x"]},
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "comms.toml: there is neither [smtp] nor [http]; say by what messages are sent, or take --role producer"),
        (SMTP + HTTP, "comms.toml: there are both [smtp] and [http]"),
        ("[smtp]\n", "comms.toml: smtp.host: is missing"),
        (f'{SMTP}hots = "x"\n', "smtp.hots: there is no such key; did you mean `host`?"),
        (f"{SMTP}[send]\nrat = 1\n", "send.rat: there is no such key; did you mean `rate`?"),
        (f'form = "x"\n{SMTP}', "form: there is no such key; did you mean `from`?"),
        (f'token = "x"\n{SMTP}', "token: there is no such key here; it belongs to [api]"),
        (f'{SMTP}[send]\nrate = "fast"\n', "send.rate: must be messages per second, such as 14"),
        (f"{SMTP}[send]\nrate = 0\n", "rate of sending must be from 0.001 to 1,000,000"),
        (f"{SMTP}[send]\nconcurrency = 0\n", "concurrency of sending is 0; give 1 or more"),
        (f'{SMTP}[send]\nconcurrency = "2"\n', "send.concurrency: must be a whole number"),
        (f'{SMTP}[send]\nkeep = "1h"\n', "keep of sending is 3600 s; give 172800 s or more"),
        (f'{SMTP}[send]\nretry_longest = "1s"\n', "retry_longest of sending is shorter than retry_first"),
        (f'{SMTP}tls = "maybe"\n', "smtp.tls: must be none, starttls or tls"),
        ('[smtp]\nhost = "smtp.example.com"\nuser = "shop"\n', "user and password of the mail server go together"),
        (f'{SMTP}tls = "none"\n', "a password would go to the mail server in the open"),
        ('[smtp]\nhost = "smtp example"\n', "the host of the mail server is no name"),
        ('[smtp]\nhost = "x"\nport = 99999\n', "port of the mail server is 99999"),
        (f'{SMTP}tls_ca = "none.pem"\n', "none.pem as tls_ca of the mail server"),
        (f'{SMTP}[api]\ntoken = "short"\n', "the token of the API must have at least 16 characters"),
        (f'from = "nobody"\n{SMTP}', "from: the address that messages are from is no e-mail address"),
        (f'queue = "e mail"\n{SMTP}', "comms.toml: queue: "),
        (f'listen = "here"\n{SMTP}', "listen: 'here' is no address to listen on"),
        (f'url = "postgresql://[::1"\n{SMTP}', "comms.toml: url: "),
        (f'listen_url = "postgresql://[::1"\n{SMTP}', "comms.toml: listen_url: "),
        ('[smtp]\nhost = "${NOT_SET}"\n', "smtp.host: environment variable NOT_SET is not set"),
        ('[http]\nurl = "ftp://x"\n', "the url of the HTTP API must look like https://"),
        ('[http]\nurl = "https://x"\nmethod = "GET"\n', "method of the HTTP API must be one of POST, PUT"),
        ('[http]\nurl = "https://x"\nbody.a = "{too}"\n', "body of the HTTP API names {too}, which no message has"),
        ('[http]\nurl = "https://x"\nheaders.Idempotency-Key = "1"\n', "Idempotency-Key is set by Headwater"),
        ('[http]\nurl = "https://x"\nheaders.A = "1\\n2"\n', "header A of the HTTP API has a line break"),
        ("[smtp\n", "comms.toml is not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, said):
    assert said in refusal(tmp_path, text)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    said = refusal(tmp_path, f'listen = "here"\n{SMTP}port = -1\n[send]\nrate = 0\nattempts = 0\n')
    assert said.startswith("comms.toml has 4 errors:\n")


def test_what_is_written_wrong_and_what_is_wrong_with_the_rest_is_said_at_once(tmp_path):
    said = refusal(
        tmp_path,
        """listen = "here"
from = "${NOT_SET}"
[api]
token = "${NOT_SET}"
conections = 2
max_messages = 0
[send]
rate = 0
lease = 3
attempts = "many"
retry_longest = "1s"
[smtp]
host = "smtp.example.com"
user = "shop"
password = 7
tls_ca = "none.pem"
port = 99999
""",
    )
    lines = said.splitlines()
    assert lines[0] == "comms.toml has 12 errors:"
    named = [line.partition(":")[0].strip() for line in lines[1:]]
    assert {name: named.count(name) for name in named} == {
        **dict.fromkeys(["listen", "from", "api.token", "api.conections", "api"], 1),
        "send": 2,
        "send.lease": 1,
        "send.attempts": 1,
        **dict.fromkeys(["smtp.password", "smtp.tls_ca", "smtp"], 1),
    }


@pytest.mark.parametrize(
    ("text", "count"),
    [
        # What needs a key that is wrong, or is about one, waits until it is right.
        ('[smtp]\nhost = "x"\nuser = "${NOT_SET}"\npassword = 3\n', 2),
        (f'{SMTP}[send]\nretry_first = 3\nretry_longest = "1s"\n', 1),
        ("[smtp]\nport = 99999\n", 1),
        ('[smtp]\nprt = 1\n[http]\nurl = "ftp://x"\n', 4),
        ('queue = "${NOT_SET}"\nlisten = "${NOT_SET}"\nurl = "${NOT_SET}://["\n[smtp]\nhost = "${NOT_SET}"\n', 4),
    ],
)
def test_what_is_only_due_to_another_fault_is_not_said(tmp_path, text, count):
    said = refusal(tmp_path, text)
    assert (said.count("\n") or 1, said) == (count, said)


def test_what_is_common_to_both_parts_is_said_once(tmp_path):
    assert refusal(tmp_path, f'from = "nobody"\n{SMTP}').count("is no e-mail address") == 1


_WITHOUT_EXTRA = """
import sys
for name in ("aiosmtplib", "httpx", "starlette", "uvicorn", "prometheus_client"):
    sys.modules[name] = None
import typer
from headwater.cli.app import app
commands = typer.main.get_command(app).commands
for group in (commands, commands["outbox"].commands):
    list(group.values())
import headwater.comms
"""


def test_the_program_loads_without_the_extra():
    done = subprocess.run([sys.executable, "-c", _WITHOUT_EXTRA], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
