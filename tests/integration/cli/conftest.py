"""What tests of the command line share."""

import logging

import pytest

from headwater.cli.app import run


@pytest.fixture(autouse=True)
def root_logger():
    """Leave the root logger as it was: pytest's own handlers hang on it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers, root.level = handlers, level


@pytest.fixture
def headwater(capsys):
    """Run the program with some arguments; gives its exit code and what it wrote to standard output and standard error."""

    def call(*arguments):
        code = run(arguments)
        output = capsys.readouterr()
        return code, output.out, output.err

    return call
