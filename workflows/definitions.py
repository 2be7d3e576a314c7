"""Definitions: what runs execute. A version, once stored, never changes.

Guarantees: what is stored is sound (`workflows.steps`) and could be submitted as it stands; the
same id and version stands for the same content for ever. Locks nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import transaction

from mesh import clock, history
from mesh.canonical import digest
from mesh.errors import DomainError
from mesh.models import Application, Role
from mesh.screening import require_no_secrets
from mesh.tenancy import Caller, get_application

from .models import Definition
from .names import require_id
from .steps import parse

VERSIONS: Final = range(1, 2**31)


@history.audited("definition.stored", on="definition_id", writes=False)
def store(
    *,
    caller: Caller,
    application: str,
    definition_id: str,
    version: int,
    steps: Sequence[Mapping[str, Any]],
) -> tuple[Definition, bool]:
    """Keep a version of a workflow; the answer says whether it is new.

    The same content again, after defaults, is the stored one, and leaves no audit row. Refuses in
    this order: PERMISSION_DENIED (operator); APPLICATION_NOT_FOUND; ADMISSION_INVALID (id,
    version; steps, with the facts `step` and `reason`); WORKLOAD_SECRET_REJECTED (in the input of
    a step); ADMISSION_INVALID (stored already with other content). Of two at once one is first.
    """
    caller.require(Role.OPERATOR)
    found = get_application(caller, application)
    require_id(definition_id, "definition_id")
    if version not in VERSIONS:
        raise DomainError("ADMISSION_INVALID", "A version is a number from 1 on.", field="version")
    sound = parse(steps)
    for each in sound.values():
        require_no_secrets(**{f"input of step {each.step}": each.input})
    stored = sound.stored()
    content = {
        "application": found,
        "steps": stored,
        "checksum": digest([found.name, stored]),
        "created_by": caller.subject,
    }
    with transaction.atomic():
        # Also where another call stores it at the same moment: then its row is what is found.
        definition, created = Definition.objects.select_related("application").get_or_create(
            tenant_id=caller.tenant_id,
            definition_id=definition_id,
            version=version,
            defaults=content,
        )
        if created:
            _audit(definition, found, caller)
    if definition.checksum != content["checksum"]:
        raise DomainError(
            "ADMISSION_INVALID",
            "This version is stored with other content; give the next one another number.",
            definition_id=definition_id,
            version=version,
        )
    return definition, created


def get(*, caller: Caller, definition_id: str, version: int) -> Definition:
    """The stored version. Refuses with PERMISSION_DENIED and DEFINITION_NOT_FOUND."""
    caller.require(Role.VIEWER)
    found = (
        Definition.objects.visible_to(caller)
        .select_related("application")
        .filter(definition_id=definition_id, version=version)
        .first()
    )
    if found is None:
        raise not_found()
    return found


def not_found() -> DomainError:
    return DomainError("DEFINITION_NOT_FOUND", "There is no such version of that definition.")


def _audit(definition: Definition, application: Application, caller: Caller) -> None:
    history.audit(
        tenant_id=caller.tenant_id,
        actor=caller.subject,
        action="definition.stored",
        target=definition.definition_id,
        at=clock.now(),
        evidence={
            "application": application.name,
            "version": definition.version,
            "checksum": definition.checksum,
        },
    )
