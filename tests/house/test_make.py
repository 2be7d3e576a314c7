"""The commands that people type first."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.commands import ROOT


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # As typed at a prompt, also where the tests themselves run under make.
    prompt = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=prompt,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What set-up needs of a fresh clone; the lock files are empty, so nothing is installed."""
    (tmp_path / "requirements").mkdir()
    for name in ("Makefile", "requirements/install"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("runtime.txt", "dev.txt"):
        (tmp_path / "requirements" / name).touch()
    return tmp_path


def test_help_lists_every_target_and_is_what_make_alone_does() -> None:
    listed = make("help").stdout
    assert [
        n for n in ("run", "test", "check", "bench", "lock") if f"make {n} " not in listed
    ] == []
    assert make().stdout == listed


def test_set_up_runs_once_until_the_lock_file_changes(clone: Path) -> None:
    first = make("dev", folder=clone)
    assert "Installing requirements/dev.txt" in first.stdout, first.stderr
    assert make("dev", folder=clone).stdout == ""
    assert make("runtime", folder=clone).stdout == ""  # dev holds it already
    (clone / "requirements" / "dev.txt").write_text("# changed\n")
    assert "Installing requirements/dev.txt" in make("dev", folder=clone).stdout
    assert make("dev", folder=clone).stdout == ""


def test_set_up_goes_on_where_venv_brings_no_pip(clone: Path, tmp_path: Path) -> None:
    python = tmp_path / "python-without-ensurepip"
    python.write_text(
        '#!/bin/sh\n[ "$*" = "-m venv .venv" ] && mkdir -p .venv && exit 1\nexec python3 "$@"\n'
    )
    python.chmod(0o755)
    done = make("runtime", f"PYTHON={python}", folder=clone)
    assert done.returncode == 0, done.stderr
    assert (clone / ".venv" / "installed-runtime.txt").exists()


def test_an_old_python_is_refused_in_one_line(clone: Path) -> None:
    python = clone / "python-old"
    python.write_text('#!/bin/sh\ncase "$2" in *version_info*) exit 1;; *) echo 3.9.2;; esac\n')
    python.chmod(0o755)
    done = make("runtime", f"PYTHON={python}", folder=clone)
    assert done.returncode != 0
    assert f"fencepost: Python 3.11 or newer is needed, {python} is 3.9.2" in done.stderr


def test_no_python_is_refused_in_one_line(clone: Path) -> None:
    done = make("runtime", "PYTHON=python-none", folder=clone)
    assert "fencepost: python-none was not found: install Python 3.11" in done.stderr


def test_scripts_are_executable_and_parse() -> None:
    for name in (".ci/run", "requirements/install", "requirements/lock"):
        path = ROOT / name
        assert os.access(path, os.X_OK), name
        shell = "bash" if "bash" in path.read_text().splitlines()[0] else "sh"
        assert subprocess.run([shell, "-n", str(path)], check=False).returncode == 0
