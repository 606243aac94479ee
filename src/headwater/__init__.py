"""Headwater moves what happens in PostgreSQL to wherever it is needed, and loses none of it."""

from importlib import import_module

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """Look the version up when somebody asks for it: every process of Spark's would else read the package's metadata."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    version: str = import_module("importlib.metadata").version("headwater")
    return version
