"""`headwater queue`: jobs in PostgreSQL, from the command line."""

from headwater.cli.queue.commands import queue

__all__ = ["queue"]
