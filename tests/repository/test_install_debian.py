"""What `scripts/install-debian` says and does, with programs that only pretend: nothing is installed here."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install-debian"
# What the script uses of a plain system; all else on the PATH of these tests is pretended.
PLAIN_PROGRAMS = ["cat", "chmod", "dirname", "grep", "mkdir", "mktemp", "mv", "rm", "rmdir"]
NOBODY = 65534

DPKG_QUERY = 'for package; do :; done; test -e "$INSTALL_DEBIAN_ROOT/installed/$package" && printf installed'
APT_CACHE = 'test -e "$INSTALL_DEBIAN_ROOT/known/$2"'
APT_GET = """
echo "$@" >>"$INSTALL_DEBIAN_ROOT/calls"
case " $* " in *" install "*)
  "$INSTALL_DEBIAN_ROOT/usr/sbin/policy-rc.d"; echo "services: $?" >>"$INSTALL_DEBIAN_ROOT/calls"
  cat "$INSTALL_DEBIAN_ROOT/etc/postgresql-common/createcluster.d/"* >>"$INSTALL_DEBIAN_ROOT/calls"
  for word; do if test -e "$INSTALL_DEBIAN_ROOT/known/$word"; then : >"$INSTALL_DEBIAN_ROOT/installed/$word"; fi; done
esac
"""


@dataclass
class Machine:
    """A pretended machine: a directory of programs, and a directory that stands for its root."""

    programs: Path
    root: Path

    def give(self, name: str, script: str) -> None:
        program = self.programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def install(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.programs), "INSTALL_DEBIAN_ROOT": str(self.root), **environment}
        return subprocess.run(["/bin/sh", SCRIPT, *arguments], env=environment, capture_output=True, text=True)

    @property
    def calls(self) -> str:
        log = self.root / "calls"
        return log.read_text() if log.exists() else ""

    @property
    def policy(self) -> Path:
        return self.root / "usr" / "sbin" / "policy-rc.d"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Debian seen by an ordinary user without sudo: it knows both packages and has neither."""
    machine = Machine(tmp_path / "programs", tmp_path / "root")
    for directory in (machine.programs, machine.root / "installed", machine.root / "known"):
        directory.mkdir(parents=True)
    for name in PLAIN_PROGRAMS:
        (machine.programs / name).symlink_to(shutil.which(name) or name)
    for package in ("rabbitmq-server", "postgresql-15"):
        (machine.root / "known" / package).touch()
    machine.give("dpkg-query", DPKG_QUERY)
    machine.give("apt-cache", APT_CACHE)
    machine.give("apt-get", APT_GET)
    machine.give("id", f"echo {NOBODY}")
    return machine


@pytest.fixture
def as_root(machine: Machine) -> Machine:
    machine.give("id", "echo 0")
    return machine


def test_nobody_without_any_program_is_told_what_to_install():
    # The script comes on stdin: its directory may be closed to others.
    with SCRIPT.open() as script:
        answer = subprocess.run(
            ["/bin/sh", "-s", "rabbitmq-server", "postgresql-15"],
            stdin=script,
            env={"PATH": "/nonexistent"},
            cwd="/",
            user=NOBODY if os.geteuid() == 0 else None,
            capture_output=True,
            text=True,
        )

    assert answer.returncode == 0
    assert "there is no apt-get here" in answer.stderr
    assert "sudo apt-get install --no-install-recommends rabbitmq-server postgresql-15" in answer.stderr
    assert "THE TESTS THAT NEED rabbitmq-server postgresql-15 ARE SKIPPED" in answer.stderr


def test_nothing_is_said_or_done_when_all_is_there(machine):
    (machine.root / "installed" / "rabbitmq-server").touch()

    answer = machine.install("rabbitmq-server")

    assert (answer.returncode, answer.stdout, answer.stderr, machine.calls) == (0, "", "", "")


def test_an_ordinary_user_is_told_the_command_for_what_is_missing(machine):
    (machine.root / "installed" / "rabbitmq-server").touch()

    answer = machine.install("rabbitmq-server", "postgresql-15")

    assert answer.returncode == 0
    assert "neither root nor somebody who may sudo" in answer.stderr
    assert "sudo apt-get install --no-install-recommends postgresql-15\n" in answer.stderr
    assert "THE TESTS THAT NEED postgresql-15 ARE SKIPPED" in answer.stderr
    assert machine.calls == ""


def test_what_is_missing_is_an_error_on_a_build_server(machine):
    answer = machine.install("postgresql-15", CI="true")

    assert answer.returncode == 1
    assert "sudo apt-get install --no-install-recommends postgresql-15\n" in answer.stderr
    assert "SKIPPED" not in answer.stderr


def test_what_is_missing_is_an_error_when_it_is_required(machine):
    assert machine.install("--required", "python3.11-venv").returncode == 1


def test_who_may_sudo_without_a_password_installs_by_it(machine):
    machine.give("sudo", 'echo "sudo $@" >>"$INSTALL_DEBIAN_ROOT/calls"')

    answer = machine.install("postgresql-15", CI="true")

    assert answer.returncode == 0
    assert machine.calls.splitlines() == ["sudo -n true", f"sudo -n {SCRIPT} --required postgresql-15"]


def test_root_installs_what_is_missing_and_starts_nothing(as_root):
    (as_root.root / "installed" / "rabbitmq-server").touch()

    answer = as_root.install("rabbitmq-server", "postgresql-15")

    assert answer.returncode == 0
    assert "installing postgresql-15 with apt-get" in answer.stderr
    assert "install --no-install-recommends postgresql-15\n" in as_root.calls
    assert "services: 101" in as_root.calls
    assert "create_main_cluster = false" in as_root.calls


def test_nothing_is_left_behind_of_what_held_the_services(as_root):
    as_root.install("postgresql-15")

    assert not as_root.policy.exists()
    assert not (as_root.root / "etc" / "postgresql-common").exists()


def test_a_policy_for_services_that_was_there_is_put_back(as_root):
    as_root.policy.parent.mkdir(parents=True)
    as_root.policy.write_text("#!/bin/sh\nexit 7\n")

    as_root.install("postgresql-15")

    assert "services: 101" in as_root.calls
    assert as_root.policy.read_text() == "#!/bin/sh\nexit 7\n"


def test_a_policy_is_put_back_also_after_a_run_that_was_killed(as_root):
    as_root.policy.parent.mkdir(parents=True)
    as_root.policy.write_text("#!/bin/sh\nexit 7\n")
    as_root.give("apt-get", 'case " $* " in *" install "*) kill -9 $PPID;; esac')
    assert as_root.install("postgresql-15").returncode < 0

    as_root.give("apt-get", APT_GET)
    as_root.install("postgresql-15")

    assert as_root.policy.read_text() == "#!/bin/sh\nexit 7\n"


def test_a_package_that_this_release_does_not_have_is_named_and_the_others_are_installed(as_root):
    (as_root.root / "known" / "postgresql-15").unlink()

    answer = as_root.install("rabbitmq-server", "postgresql-15")

    assert answer.returncode == 0
    assert (as_root.root / "installed" / "rabbitmq-server").exists()
    assert "postgresql-15 cannot be installed: no repository of this machine has it (Debian 12 does)" in answer.stderr
    assert "THE TESTS THAT NEED postgresql-15 ARE SKIPPED" in answer.stderr


def test_what_apt_says_is_shown_when_it_fails(as_root):
    as_root.give("apt-get", "echo the disk is full; exit 100")

    answer = as_root.install("postgresql-15")

    assert answer.returncode == 0
    assert "the disk is full" in answer.stderr
    assert "postgresql-15 cannot be installed: apt-get install failed" in answer.stderr


def test_lists_that_cannot_be_fetched_do_not_hinder_when_older_ones_are_there(as_root):
    as_root.give("apt-get", f'case " $* " in *" update "*) exit 100;; esac\n{APT_GET}')

    answer = as_root.install("postgresql-15")

    assert answer.returncode == 0
    assert "going on with the lists that are here" in answer.stderr
    assert (as_root.root / "installed" / "postgresql-15").exists()
