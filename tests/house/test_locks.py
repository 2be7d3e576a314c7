"""The lock files are what pyproject.toml asks for, and hold no address."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from requirements.check import ROOT, problems


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    return tmp_path


def test_the_lock_files_are_complete_and_clean() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    "line",
    [
        "--extra-index-url https://index.example/simple",
        "--find-links /opt/wheels",
        "django @ file:///opt/wheels/django.whl",
        "django @ https://index.example/django.whl",
        "-e .",
    ],
)
def test_an_address_in_a_lock_file_is_found(copy: Path, line: str) -> None:
    lock = copy / "requirements" / "runtime.txt"
    lock.write_text(f"{lock.read_text()}{line}\n")
    assert any("neither a pin nor a hash" in problem for problem in problems(copy))


def test_a_pin_without_a_hash_is_found(copy: Path) -> None:
    lock = copy / "requirements" / "dev.txt"
    lock.write_text(f"{lock.read_text()}somepackage==1.0\n")
    assert "dev.txt: somepackage==1.0 has no hash" in problems(copy)


def test_a_dependency_that_was_not_locked_is_found(copy: Path) -> None:
    project = copy / "pyproject.toml"
    project.write_text(project.read_text().replace("celery[redis]~=5.7.0", "celery[redis]~=5.8.0"))
    assert any("celery[redis]~=5.8.0" in problem for problem in problems(copy))


def test_a_version_that_tests_do_not_share_is_found(copy: Path) -> None:
    lock = copy / "requirements" / "dev.txt"
    lock.write_text(lock.read_text().replace("celery==5.7.0", "celery==5.7.1"))
    assert "dev.txt: celery differs from runtime.txt: run make lock" in problems(copy)
