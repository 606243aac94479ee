"""Logging in with a key: seeds and credentials files as NATS writes them, and signatures of what the server sends.

A key is base32 of one or two bytes that tell its kind, the 32 bytes, and a CRC-16 of both, low byte first. The format is
that of `nkeys`: https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/nkey_auth
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path

from headwater.errors import SettingsError

_SEED, _USER = 18 << 3, 20 << 3
_KEY_BYTES = 32
_CHECK_BYTES = 2
# A JWT and a seed, each between two lines of dashes; what stands around them is for people.
_BLOCK = re.compile(r"-{3,}[^\n]*-{3,}\r?\n\s*([\w\-.=]+)\s*\r?\n-{3,}[^\n]*-{3,}")


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are: a key that signs, and the JWT that vouches for it, if there is one."""

    seed: bytes = field(repr=False)
    jwt: str | None = field(default=None, repr=False)

    @property
    def public_key(self) -> str:
        # Only those who log in this way need the library.
        from nacl.signing import SigningKey

        raw = bytes([_USER]) + bytes(SigningKey(self.seed).verify_key)
        return base64.b32encode(raw + _check(raw)).decode().rstrip("=")

    def sign(self, nonce: str) -> str:
        """The signature of what the server sent, in base64 for URLs and without padding."""
        from nacl.signing import SigningKey

        signature = SigningKey(self.seed).sign(nonce.encode()).signature
        return base64.urlsafe_b64encode(signature).decode().rstrip("=")


def read_nkey(path: str) -> Login:
    """The key of a seed file; lines of comment (#) and dashes around it are allowed."""
    lines = [line.strip() for line in _read(path).splitlines()]
    seeds = [line for line in lines if line.startswith("SU")]
    if len(seeds) != 1:
        raise SettingsError(f"{path} holds no seed of a NATS user; it has to have one line that starts with SU")
    return Login(_decode_seed(seeds[0], path))


def read_credentials(path: str) -> Login:
    """The JWT and the key of a credentials file."""
    blocks = _BLOCK.findall(_read(path))
    if len(blocks) < 2:
        raise SettingsError(
            f"{path} is no NATS credentials file; it has to hold a user's JWT and seed, as `nsc` writes them"
        )
    return Login(_decode_seed(blocks[1], path), blocks[0])


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"cannot read the NATS key in {path}: {getattr(error, 'strerror', None) or 'not text'}"
        ) from None


def _decode_seed(text: str, path: str) -> bytes:
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error:
        raw = b""
    content, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
    if len(content) != 2 + _KEY_BYTES or check != _check(content):
        raise SettingsError(f"the seed in {path} is damaged; write the file anew")
    kind = (content[0] & 7) << 5 | content[1] >> 3
    if content[0] & 0xF8 != _SEED or kind != _USER:
        raise SettingsError(f"the seed in {path} is not that of a user; it has to start with SU")
    return content[2:]


def _check(content: bytes) -> bytes:
    return binascii.crc_hqx(content, 0).to_bytes(_CHECK_BYTES, "little")
