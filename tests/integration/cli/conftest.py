"""What tests of the command line share."""

import pytest

from headwater.cli.app import run


@pytest.fixture
def headwater(capsys):
    """Run the program with some arguments; gives its exit code and what it wrote to standard output and standard error."""

    def call(*arguments):
        code = run(arguments)
        output = capsys.readouterr()
        return code, output.out, output.err

    return call
