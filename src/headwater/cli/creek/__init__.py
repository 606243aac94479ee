"""`headwater creek`: the commands that take the place of Creek's own programs."""

from headwater.cli.creek.commands import creek

__all__ = ["creek"]
