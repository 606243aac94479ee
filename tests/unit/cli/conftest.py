"""What tests of the command line share."""

import logging

import pytest


@pytest.fixture(autouse=True)
def root_logger():
    """Leave the root logger as it was: pytest's own handlers hang on it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers, root.level = handlers, level
