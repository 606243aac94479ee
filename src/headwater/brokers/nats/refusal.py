"""What a server says with -ERR or in an answer of JetStream, as our errors: what was refused, and what to do about it."""

import re

from headwater.brokers.nats.access import NatsAccess
from headwater.errors import BrokerError, BrokerUnavailable

_PERMISSION = re.compile(r'Permissions Violation for (Publish|Subscription) to "([^"]*)"', re.IGNORECASE)
# Words of the server after which it hangs up, and which another try may not meet again.
_PASSING = ("stale connection", "maximum connections exceeded", "slow consumer", "server shutdown", "connection throttling")
_SECRETS = ("authorization", "authentication")


def translated(text: bytes, access: NatsAccess, where: str) -> BrokerError:
    """The error for a line -ERR."""
    words = text.decode(errors="replace").strip().strip("'")
    low = words.lower()
    if match := _PERMISSION.search(words):
        return _forbidden(match[1].lower() == "publish", match[2], where)
    if any(word in low for word in _SECRETS):
        return BrokerError(f"the NATS server at {where} refused us ({words}); {_what_to_check(access)}")
    if any(word in low for word in _PASSING):
        return BrokerUnavailable(f"the NATS server at {where} ended the connection: {words}")
    return BrokerError(f"the NATS server at {where} refused us: {words}")


def _forbidden(is_publish: bool, subject: str, where: str) -> BrokerError:
    if is_publish:
        return BrokerError(
            f"the NATS server at {where} does not let us publish to {subject!r}; add it to the user's publish permissions"
        )
    return BrokerError(
        f"the NATS server at {where} does not let us subscribe to {subject!r}; add it to the user's subscribe permissions, "
        "or set inbox_prefix to what they allow"
    )


def _what_to_check(access: NatsAccess) -> str:
    if access.creds_file is not None:
        return f"check that the credentials in {access.creds_file} are of an account that the server knows, and not expired"
    if access.nkey_file is not None:
        return f"check that the server knows the public key of the seed in {access.nkey_file}"
    if access.token is not None or any(server.token is not None for server in access.servers):
        return "check the token"
    if access.user is not None or any(server.user is not None for server in access.servers):
        return "check user and password"
    return "it wants to know who we are: give user and password, a token, an nkey_file or a creds_file"
