"""`headwater demo`: capture at work on a private server, and the proof that nothing was lost."""

from headwater.cli.demo.command import demo

__all__ = ["demo"]
