"""Rules about rights: grants are issued, derived and revoked."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import rule

from mesh import revocations
from mesh.models import Grant

from .both import Both, some
from .rows import Right

# Waiting for all of these to end, one after the other, stays within what retention keeps.
LONG_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
SUBJECTS: Final = ("service:registrar", "service:deputy")


class RightRules(Both):
    def right(self, number: int) -> Right:
        """Mostly one that is good; where none is, a new one."""
        good = [each for each in self.model.rights if each.is_good(self.model.now)]
        if number % 8 == 0 and self.model.rights:
            good = self.model.rights
        if not good:
            self.issue(number)
            good = self.model.rights[-1:]
        return good[number % len(good)]

    @rule(number=some)
    def issue(self, number: int) -> None:
        subject = SUBJECTS[number % 2]
        made, token = self.world.grant(subject=subject, expires_in_ms=LONG_MS)
        self._know(None, subject, self.model.now + LONG_MS, (made, token))

    @rule(number=some | st.just(-1), length=st.sampled_from([None, None, 20_000]))
    def derive(self, number: int, length: int | None) -> None:
        """From any grant, also from one that is over, revoked or too deep; mostly from the last."""
        if not self.model.rights:
            self.issue(number)
        place = number % len(self.model.rights) if number % 3 == 0 else -1
        parent, subject = self.model.rights[place], SUBJECTS[number % 2]
        ends, made = self.both(
            lambda: self.model.derive(parent, HOUR_MS if length is None else length, length),
            lambda: self.world.delegated(parent.row, subject=subject, expires_in_ms=length),
        )
        if made is not None:
            self._know(parent, subject, ends, made)

    def _know(self, parent: Right | None, subject: str, ends: int, made: tuple[Grant, str]) -> None:
        row, token = made
        assert row.expires_at == self.at(ends)
        self.model.rights.append(Right(parent, subject, ends, row, token))

    @rule(number=some, kind=st.sampled_from(["grant", "grant", "parent", "subject"]))
    def revoke(self, number: int, kind: str) -> None:
        """One that a worker rests on, the one above it, or all of a subject's."""
        used = [each.right for each in self.model.workers.values()]
        rights = used if used and number % 4 else self.model.rights
        if not rights:
            return
        right = rights[number % len(rights)]
        if kind == "parent" and right.parent is not None:
            right = right.parent
        if kind == "subject":
            target = right.subject
            self.model.revoke([each for each in self.model.rights if each.subject == target])
        else:
            kind, target = "grant", right.row.grant_id
            self.model.revoke([right])
        revocations.revoke(caller=self.world.caller(), kind=kind, target=target)
