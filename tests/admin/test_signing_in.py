"""Who guesses a password is locked out, by name and address together, and nobody else."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from . import rows

WRONG = "not the password"


@pytest.fixture
def ann(db: None, settings: Settings) -> str:
    settings.AXES_FAILURE_LIMIT = 3
    user = User.objects.create_user("ann", password=rows.PASSWORD)
    user.is_staff = True
    user.save()
    return "ann"


def sign_in(name: str, password: str, address: str = "192.0.2.1") -> tuple[int, str]:
    said = {"username": name, "password": password}
    answer = Client().post("/admin/login/", said, REMOTE_ADDR=address)
    return answer.status_code, answer.content.decode()


def test_too_many_failures_lock_a_person_out_from_that_address(ann: str) -> None:
    for _ in range(2):
        assert sign_in(ann, WRONG)[0] == 200
    sign_in(ann, WRONG)
    status, page = sign_in(ann, rows.PASSWORD)
    assert status == 429
    assert "Too many failed sign-ins" in page


def test_from_another_address_the_person_signs_in_meanwhile(ann: str) -> None:
    for _ in range(5):
        sign_in(ann, WRONG)
    assert sign_in(ann, rows.PASSWORD, "192.0.2.2")[0] == 302


def test_others_sign_in_from_the_address_meanwhile(ann: str) -> None:
    for _ in range(5):
        sign_in("somebody", WRONG)
    assert sign_in(ann, rows.PASSWORD)[0] == 302


def test_signing_in_forgets_the_failures_before(ann: str) -> None:
    for _ in range(3):
        assert sign_in(ann, WRONG)[0] == 200
        assert sign_in(ann, WRONG)[0] == 200
        assert sign_in(ann, rows.PASSWORD)[0] == 302
