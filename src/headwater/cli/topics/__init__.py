"""`headwater topics`: logs in PostgreSQL, from the command line."""

from headwater.cli.topics.commands import topics

__all__ = ["topics"]
