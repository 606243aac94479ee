"""What a role or a database lacks for events to be written: said with the command that provides it."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from headwater.errors import OutboxError, SchemaError

# The server names what it refuses in any language. A trigger of the application may refuse something that is not ours.
_OURS: Final = re.compile(r"\b(headwater|outbox_\w+|migration)\b")


# By the option of `headwater outbox init` that grants it.
_RIGHTS: Final = {"--grant": "write", "--grant-relay": "relay"}


def no_outbox() -> SchemaError:
    return SchemaError("this database has no outbox, or one of an earlier release; run `headwater outbox init` first")


@contextmanager
def granted(role: str, option: str) -> Iterator[None]:
    """Around statements that need what an option of `headwater outbox init` grants, and the tables that it makes."""
    try:
        yield
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable) as exc:
        refused = exc.diag.message_primary or ""
        if not _OURS.search(refused):
            raise
        if isinstance(exc, psycopg.errors.UndefinedTable):
            raise no_outbox() from exc
        raise OutboxError(
            f"role {role} may not {_RIGHTS[option]} events ({refused}); have the owner of the outbox run "
            f"`headwater outbox init {option} {shlex.quote(role)}`"
        ) from exc
