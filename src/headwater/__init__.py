"""Headwater moves what happens in PostgreSQL to wherever it is needed, and loses none of it."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("headwater")
