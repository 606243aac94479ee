"""`headwater check`: what stands in the way of capturing a database, and what to do about it, before anything starts."""

from headwater.cli.check.command import check

__all__ = ["check"]
