"""Keys, tokens and certificates as NATS wants them, made for one test."""

import base64
import binascii
import json
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nacl.signing import SigningKey

OPERATOR, ACCOUNT, USER, _SEED = 14 << 3, 0, 20 << 3, 18 << 3


@dataclass(frozen=True)
class Nkey:
    """A key pair of a kind, which signs tokens."""

    kind: int
    secret: SigningKey

    @classmethod
    def new(cls, kind: int) -> "Nkey":
        return cls(kind, SigningKey.generate())

    @cached_property
    def public(self) -> str:
        return _encode(bytes([self.kind]) + bytes(self.secret.verify_key))

    @property
    def seed(self) -> str:
        return _encode(bytes([_SEED | self.kind >> 5, (self.kind & 31) << 3]) + bytes(self.secret))

    def token(self, subject: str, name: str, claims: dict[str, object]) -> str:
        """A JWT about `subject`, signed by this key."""
        body = {"jti": name, "iat": 1700000000, "iss": self.public, "name": name, "sub": subject, "nats": claims}
        parts = [_base64(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
        return ".".join([*parts, _base64(self.secret.sign(".".join(parts).encode()).signature)])


def credentials(jwt: str, seed: str) -> str:
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def certify(directory: Path, name: str, host: str = "127.0.0.1") -> None:
    """`<name>.pem` and `<name>.key` for a host, signed by `ca.pem`, which is made when it is not there."""
    if not (directory / "ca.pem").exists():
        _openssl(
            directory,
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=tests "
            "-keyout ca.key -out ca.pem",
        )
    kind = "IP" if host[0].isdigit() else "DNS"
    (directory / f"{name}.ext").write_text(f"subjectAltName={kind}:{host}\n")
    _openssl(
        directory,
        f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr",
    )
    _openssl(
        directory,
        f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out {name}.pem -extfile {name}.ext",
    )


def _openssl(directory: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=directory, check=True, capture_output=True)


def _encode(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
