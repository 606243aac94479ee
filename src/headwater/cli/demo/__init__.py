"""`headwater demo`: a whole pipeline at work on private servers, and the proof that nothing was lost."""

from headwater.cli.demo.command import demo

__all__ = ["demo"]
