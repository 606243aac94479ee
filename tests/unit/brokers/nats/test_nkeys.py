import base64

import pytest
from nacl.signing import VerifyKey

from headwater.brokers.nats.nkeys import read_credentials, read_nkey
from headwater.errors import SettingsError

# The pair of the documentation of NATS.
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
CREDENTIALS = f"""-----BEGIN NATS USER JWT-----
eyJ0eXAi.eyJqdGki.c2ln-_
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------

*************************************************************
"""


@pytest.fixture
def written(tmp_path):
    def write(content: str) -> str:
        path = tmp_path / "key"
        path.write_text(content)
        return str(path)

    return write


def test_a_seed_gives_the_public_key_that_nats_gives(written):
    assert read_nkey(written(f"# mine\n{SEED}\n")).public_key == PUBLIC


def test_a_signature_is_that_of_the_public_key(written):
    signature = read_nkey(written(SEED)).sign("nonce")
    public = base64.b32decode(PUBLIC)[1:33]
    assert "=" not in signature
    assert VerifyKey(public).verify(b"nonce", base64.urlsafe_b64decode(signature + "==")) == b"nonce"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_credentials_file_holds_a_jwt_and_a_seed(written, ending):
    login = read_credentials(written(CREDENTIALS.replace("\n", ending)))
    assert (login.jwt, login.public_key) == ("eyJ0eXAi.eyJqdGki.c2ln-_", PUBLIC)
    assert SEED not in repr(login)


@pytest.mark.parametrize("content", ["", "nothing", PUBLIC, CREDENTIALS.split("***")[0]])
def test_other_files_are_no_credentials(written, content):
    with pytest.raises(SettingsError, match="is no NATS credentials file"):
        read_credentials(written(content))


def test_a_file_without_seed_is_refused(written):
    with pytest.raises(SettingsError, match="holds no seed"):
        read_nkey(written(PUBLIC))


@pytest.mark.parametrize("seed", [SEED[:-1] + "A", SEED[:-4], "SU1"])
def test_a_damaged_seed_is_refused_and_not_shown(written, seed):
    with pytest.raises(SettingsError, match="is damaged") as refusal:
        read_nkey(written(seed))
    assert seed not in str(refusal.value)


def test_the_seed_of_an_account_is_not_that_of_a_user(written):
    account = "SAANDLKMXL6CUS3CP52WIXBEDN6YJ545GDKC65U5JZPPV6WH6ESWUA6YAI"
    with pytest.raises(SettingsError, match="not that of a user"):
        read_credentials(written(CREDENTIALS.replace(SEED, account)))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingsError, match="missing: No such file"):
        read_nkey(str(tmp_path / "missing"))
