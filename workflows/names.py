"""Ids and names of workflows: what they may look like, and how identities are made. Pure.

Run, definition, step and instance ids match `[A-Za-z0-9._:-]{1,200}`. Resources, artifacts and
tokens are not blank, at most 512 bytes long, and have no blanks around them.
"""

import re
from typing import Final

from mesh.canonical import digest
from mesh.errors import DomainError

ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")
MAX_BYTES: Final = 512
# The only generation of an activation, for now.
ACTIVATION_GENERATION: Final = 1


def require_id(value: str, what: str) -> None:
    """Refuse with ADMISSION_INVALID what is no id."""
    if not ID.fullmatch(value):
        raise DomainError(
            "ADMISSION_INVALID",
            f"The {what} has 1 to 200 of the characters A-Z a-z 0-9 . _ : -",
            field=what,
        )


def is_name(value: str) -> bool:
    """Whether it could be a resource, artifact or token."""
    return bool(value) and value == value.strip() and len(value.encode()) <= MAX_BYTES


def require_name(value: str, what: str) -> None:
    """Refuse with ADMISSION_INVALID what is no resource, artifact or token."""
    if not is_name(value):
        raise no_name(what)


def no_name(what: str) -> DomainError:
    """The refusal of what is no resource, artifact or token. It does not hold the value."""
    return DomainError(
        "ADMISSION_INVALID",
        f"The {what} is not blank, at most {MAX_BYTES} bytes, without blanks around it.",
        field=what,
    )


def activation_id(run_id: str, step: str) -> str:
    """SHA-256 (hex) over the JSON array `[run, step, generation]`."""
    return digest([run_id, step, ACTIVATION_GENERATION])


def dispatch_identity(run_id: str, step: str, number: int) -> str:
    """SHA-256 (hex) over the JSON array `[run, step, activation, attempt number]`."""
    return digest([run_id, step, activation_id(run_id, step), number])


def workload_key(identity: str) -> str:
    """The idempotency key of an attempt's one workload; nobody else may use keys like it."""
    return f"run:{identity}"
