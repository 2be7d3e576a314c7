"""Authority: who may move a run. The value, its one test, and the first claim.

Guarantees: a run has at most one authority; its generation is 1 at first and rises by exactly one
per handoff (`workflows.handoffs`); a stale authority changes nothing. The fencing token is a
secret: stored hashed, compared in constant time, in no answer, log or history.
"""

import hmac
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction

from mesh import clock
from mesh.canonical import secret_hash
from mesh.errors import DomainError
from mesh.history import audited
from mesh.models import Role
from mesh.tenancy import Caller

from . import blocks, history
from .locking import lock_run
from .models import Handoff, Run, RunEvent
from .names import is_name, no_name, require_id, require_name


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority as a coordinator presents it. Without a token it can only be shown."""

    target_artifact_id: str
    instance_id: str
    generation: int
    # Never printed: a dataclass in a traceback or log must not show it.
    fencing_token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, run: Run) -> "Authority | None":
        """The current one, without its token; None before the first claim."""
        if run.target_artifact_id is None or run.instance_id is None or run.generation is None:
            return None
        return cls(run.target_artifact_id, run.instance_id, run.generation)

    def public(self) -> dict[str, Any]:
        """All of it but the token."""
        return {
            "target_artifact_id": self.target_artifact_id,
            "instance_id": self.instance_id,
            "generation": self.generation,
        }

    def require_sound(self) -> None:
        """Refuse with ADMISSION_INVALID an instance id, artifact or token that could not be one."""
        require_id(self.instance_id, "instance_id")
        require_name(self.target_artifact_id, "target_artifact_id")
        # Not by `require_name`: a traceback that shows variables would show the token there.
        if self.fencing_token is not None and not is_name(self.fencing_token):
            raise no_name("fencing_token")

    def require_whole(self) -> None:
        """As `require_sound`, and it must have a token: ADMISSION_INVALID."""
        self.require_sound()
        if self.fencing_token is None:
            raise no_name("fencing_token")

    def without_token(self) -> "Authority":
        return Authority(self.target_artifact_id, self.instance_id, self.generation)

    def is_of(self, run: Run) -> bool:
        """Whether it is the run's current authority; where it has a token, that must fit too."""
        stored = Authority.of(run)
        if stored is None or stored.public() != self.public():
            return False
        return self.fencing_token is None or self.has_token_of(run)

    def has_token_of(self, run: Run) -> bool:
        """Compares in constant time."""
        given = secret_hash(self.fencing_token or "")
        return self.fencing_token is not None and hmac.compare_digest(given, run.token_hash or "")

    def has_token_like(self, other: "Authority") -> bool:
        """Whether both have a token, and the same one; compares in constant time."""
        if self.fencing_token is None or other.fencing_token is None:
            return False
        mine, its = secret_hash(self.fencing_token), secret_hash(other.fencing_token)
        return hmac.compare_digest(mine, its)


def require_current(run: Run, authority: Authority) -> None:
    """Refuse with AUTHORITY_STALE whatever is not the current authority of a locked run, token too.

    The answer says who is current, without the token.
    """
    if not (authority.is_of(run) and authority.has_token_of(run)):
        raise stale(run)


def stale(run: Run) -> DomainError:
    current = Authority.of(run)
    return DomainError(
        "AUTHORITY_STALE",
        "The run has no authority yet." if current is None else "Another authority is current.",
        authority=None if current is None else current.public(),
    )


def install(run: Run, authority: Authority) -> None:
    """Make it the authority of a locked run, in memory; the caller saves the four columns."""
    run.target_artifact_id = authority.target_artifact_id
    run.instance_id = authority.instance_id
    run.generation = authority.generation
    run.token_hash = secret_hash(authority.fencing_token or "")


def owned_since(run_pk: int, generation: int) -> datetime | None:
    """When the authority of that generation got the run; None where there never was one.

    The first one claimed it, or the run was started with it.
    """
    if generation > 1:
        made = Handoff.objects.filter(run_id=run_pk, generation=generation)
        return made.values_list("at", flat=True).first()
    claimed = RunEvent.objects.filter(run_id=run_pk, event="run.authority_claimed")
    run = Run.objects.filter(pk=run_pk)
    return (
        claimed.values_list("at", flat=True).first()
        or run.values_list("created_at", flat=True).first()
    )


COLUMNS = ("target_artifact_id", "instance_id", "generation", "token_hash")


@audited("run.authority_claimed", on="run_id")
def claim(*, caller: Caller, run_id: str, authority: Authority) -> Run:
    """Take a run that nobody has. The same authority again is fine, also after the run ended.

    A barrier of a restored run that belonged to nobody becomes that of the new authority. Refuses
    in this order: PERMISSION_DENIED (operator); ADMISSION_INVALID (ids, a missing token);
    RUN_NOT_FOUND; TRANSITION_INVALID (generation is not 1); AUTHORITY_STALE (another has it);
    RUN_TERMINAL (nobody has it and it ended).
    """
    caller.require(Role.OPERATOR)
    authority.require_whole()
    with transaction.atomic():
        run = lock_run(caller, run_id)
        if authority.generation != 1:
            raise DomainError("TRANSITION_INVALID", "A first authority has generation 1.")
        if run.has_authority:
            require_current(run, authority)
            return run
        if not run.is_open:
            raise terminal(run)
        at = clock.now()
        install(run, authority)
        run.save(update_fields=COLUMNS)
        blocks.own_barrier(run)
        history.record(
            run, "authority_claimed", actor=caller.subject, at=at, evidence=authority.public()
        )
    return run


def lock_open(caller: Caller, run_id: str, authority: Authority | None) -> Run:
    """Lock an open run for its authority or, where none is given, for an operator of the server.

    RUN_NOT_FOUND, AUTHORITY_STALE, RUN_TERMINAL.
    """
    run = lock_run(caller, run_id)
    if authority is not None:
        require_current(run, authority)
    if not run.is_open:
        raise terminal(run)
    return run


def terminal(run: Run) -> DomainError:
    return DomainError("RUN_TERMINAL", f"The run is {run.status}.", status_of_run=run.status)
