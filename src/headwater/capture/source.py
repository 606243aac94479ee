"""What has to be there at the source for capture to be complete."""

from headwater.capture.statements import missing_publications
from headwater.errors import SourceError
from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync


def require_publications(connection: Connection, names: tuple[str, ...]) -> None:
    """Raise SourceError if one does not exist: PostgreSQL 18 and later would pass over it in silence."""
    missing = fetch_sync(connection, missing_publications(names))
    if missing:
        raise SourceError(
            f"publication {', '.join(map(repr, missing))} does not exist in database {connection.info.dbname!r}; "
            "create it, or name another"
        )
