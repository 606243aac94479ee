"""`headwater verify`: are the tables of a pipeline's target equal to those of its source?"""

from headwater.cli.verify.command import verify

__all__ = ["verify"]
