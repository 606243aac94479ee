"""What becomes of arguments, errors, signals and closed pipes; no server needed."""

import errno
import inspect
import io
import json
import signal
import socket
import subprocess
import sys

import psycopg
import pytest
import typer

from headwater import __version__
from headwater.cli import app as program
from headwater.cli.signals import Stopped
from headwater.errors import ConnectionLost, SettingsError


@pytest.fixture
def failing(monkeypatch):
    """The program with a command `fail` that raises what it is told to."""

    def install(raised):
        app = typer.Typer(pretty_exceptions_enable=False)
        app.callback()(program.options)

        @app.command()
        def fail():
            raise raised

        monkeypatch.setattr(program, "app", app)
        return program.run

    return install


def test_an_error_of_ours_is_one_line_and_exit_code_1(failing, capsys):
    assert failing(ConnectionLost("no connection to x; check it"))(["fail"]) == 1

    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "error: no connection to x; check it\n")


def test_wrong_configuration_is_exit_code_2(failing, capsys):
    assert failing(SettingsError("odd; correct it"))(["fail"]) == 2
    assert capsys.readouterr().err == "error: odd; correct it\n"


def test_the_traceback_of_an_error_is_logged_at_debug_level(failing, capsys):
    assert failing(ConnectionLost("gone"))(["--log-level", "debug", "fail"]) == 1

    log, error = capsys.readouterr().err.splitlines()
    assert "Traceback" in json.loads(log)["exception"]
    assert error == "error: gone"


def test_what_a_server_refuses_in_the_midst_of_something_is_one_line_and_exit_code_1(failing, capsys):
    assert failing(psycopg.errors.InsufficientPrivilege("permission denied for table letter\nLINE 1: ..."))(["fail"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: PostgreSQL refused: permission denied for table letter; ")
    assert said.count("\n") == 1


def test_an_interrupt_is_quiet_and_exit_code_130(failing, capsys):
    assert failing(KeyboardInterrupt())(["fail"]) == 130
    assert capsys.readouterr() == ("", "")


class Keyboard(io.StringIO):
    """What somebody types: an answer, or Ctrl-C if there is none."""

    def readline(self, _size=-1, /):
        if not (line := super().readline()):
            raise KeyboardInterrupt
        return line


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("", 130)])
def test_ctrl_c_at_a_question_is_exit_code_130_and_a_no_is_1(monkeypatch, capsys, typed, code):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(lambda: typer.confirm("Go on?", abort=True, err=True))
    monkeypatch.setattr(program, "app", app)
    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    assert program.run([]) == code
    output = capsys.readouterr()
    assert ("Aborted." in output.err, "Traceback" in output.err) == (code != 0, False)


def test_a_stop_by_sigterm_is_exit_code_0(failing, capsys):
    assert failing(Stopped())(["fail"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["nonsense"], ["version", "--nonsense"], ["--log-level", "loud", "version"]])
def test_wrong_usage_is_exit_code_2_and_goes_to_standard_error(arguments, capsys):
    assert program.run(arguments) == 2

    output = capsys.readouterr()
    assert output.out == ""
    assert "Usage: headwater" in output.err


def test_a_malformed_url_is_refused_without_repeating_it(capsys):
    assert program.run(["check", "--url", "postgresql://me:hunter2 hunter3@/"]) == 2

    output = capsys.readouterr()
    assert "connection string is malformed" in output.err
    assert "hunter" not in output.err


def test_options_of_slots_list_are_not_lost_when_they_stand_before_it(capsys):
    assert program.run(["slots", "--url", "postgresql://example.com/x", "list"]) == 2
    assert "stand after it" in capsys.readouterr().err


def test_the_log_level_comes_from_the_environment_too(failing, capsys, monkeypatch):
    monkeypatch.setenv("HEADWATER_LOG_LEVEL", "DEBUG")

    assert failing(ConnectionLost("gone"))(["fail"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_version_is_text_or_json(capsys):
    assert program.run(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"headwater {__version__} (Python ")

    assert program.run(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["headwater"] == __version__

    assert program.run(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    "command", [[], ["check"], ["init"], ["slots"], ["slots", "list"], ["slots", "drop"], ["status"], ["version"]]
)
def test_every_command_explains_itself(command, capsys):
    assert program.run([*command, "--help"]) == 0
    assert "Usage: headwater" in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["check"], ["init"], ["slots"], ["slots", "drop"], ["status"]])
def test_help_teaches_by_examples(command, capsys):
    program.run([*command, "--help"])
    assert "Examples:" in capsys.readouterr().out


def commands_of(command, *path):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_of(inner, *path, name)


COMMANDS = list(commands_of(typer.main.get_command(program.app)))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(("headwater", *path)) for path, _ in COMMANDS])
def test_every_example_in_a_help_has_a_line_of_its_own(path, command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    written = (inspect.getdoc(command.callback) or "").splitlines()
    program.run([*path, "--help"])
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in written if line.startswith("    ") and line.strip() not in shown] == []


def test_the_help_tells_the_exit_codes(capsys):
    program.run(["--help"])
    assert "0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted" in " ".join(capsys.readouterr().out.split())


LISTED = [
    pytest.param(command, one, id=" ".join(("headwater", *path, one.name)))
    for path, command in COMMANDS
    for one in getattr(command, "listed", ())
]


@pytest.mark.parametrize(("group", "listed"), LISTED)
def test_the_line_of_a_command_that_is_loaded_late_is_the_first_line_of_its_own_help(group, listed):
    assert listed.line == group.commands[listed.name].help.partition("\n")[0]


def test_every_command_is_listed_once():
    assert [one.name for one in program.Program.listed] == [path[0] for path, _ in COMMANDS if len(path) == 1]


CAPABILITIES = {"capture", "comms", "creek", "outbox", "queue", "spark", "topics"}
RUN_AND_TELL = """
import sys
from headwater.cli.app import run
code = run(sys.argv[1:])
print("LOADED", *sys.modules, file=sys.stderr)
sys.exit(code)
"""


def loaded_by(*arguments):
    command = [sys.executable, "-c", RUN_AND_TELL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_no_command_is_loaded_for_an_option_of_the_program(option):
    loaded = loaded_by(option)
    assert loaded & {"psycopg", "pyarrow", "pydantic", "pyspark"} == set()
    assert loaded & {one.module for one in program.Program.listed} == set()


@pytest.mark.parametrize(
    ("arguments", "own"),
    [
        (["comms", "init"], {"comms", "queue"}),
        (["outbox", "init"], {"outbox"}),
        (["queue", "status"], {"queue"}),
        (["slots"], set()),
        (["topics", "list"], {"topics"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_does_not_load_other_capabilities(arguments, own):
    loaded = loaded_by(*arguments, "--help")
    assert {name for name in CAPABILITIES if f"headwater.{name}" in loaded} == own
    others = {one.module for one in program.Program.listed if one.name != arguments[0]}
    assert loaded & others == set()
    assert "pyspark" not in loaded


def test_the_relay_is_not_loaded_for_other_commands_of_the_outbox():
    assert loaded_by("outbox", "status", "--help") & {"headwater.brokers", "headwater.outbox.relay"} == set()


def headwater(*arguments, **options):
    command = [sys.executable, "-c", "from headwater.cli.__main__ import main; main()", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


# Loading takes a moment, and is done once for all of them.
WITHOUT_OUTPUT = """
import os, sys
import headwater.cli.app
from headwater.cli.__main__ import main

def outcome(output, *arguments):
    child = os.fork()
    if child == 0:
        os.dup2(output, 1)
        sys.argv[1:] = arguments
        main()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

full = os.open("/dev/full", os.O_WRONLY)
for arguments in (["version"], ["version", "--json"], ["--help"]):
    print(outcome(full, *arguments), file=sys.stderr)
reading, writing = os.pipe()
os.close(reading)
print(outcome(writing, "version", "--json"), file=sys.stderr)
"""


def test_a_full_device_for_the_output_is_one_line_and_a_reader_that_has_enough_causes_no_noise():
    done = subprocess.run([sys.executable, "-c", WITHOUT_OUTPUT], stderr=subprocess.PIPE, text=True, check=True)

    refused = ["error: cannot write the output: No space left on device", "1"]
    assert done.stderr.splitlines() == [*refused, *refused, *refused, "1"]


def test_trouble_with_a_file_of_our_own_is_not_taken_for_the_output(failing):
    with pytest.raises(OSError, match="/var/spill"):
        failing(OSError(errno.ENOSPC, "No space left on device", "/var/spill"))(["fail"])


def test_ctrl_c_while_waiting_for_a_server_is_quiet():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        process = headwater("slots", "--url", f"postgresql://me@127.0.0.1:{port}/x?sslmode=disable&gssencmode=disable")
        waiting, _ = silent.accept()
        waiting.recv(8)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=10)
        waiting.close()

    assert (process.returncode, output, errors) == (130, "", "")


def test_a_closed_output_is_one_line_and_exit_code_1():
    command = f"{sys.executable} -m headwater.cli version >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "standard output is closed" in done.stderr
