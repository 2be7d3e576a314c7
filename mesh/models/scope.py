"""Who sees which rows: one queryset method that no view can forget."""

from typing import Protocol, Self, TypeVar

from django.db import models

M = TypeVar("M", bound=models.Model)


class Seer(Protocol):
    """The two facts about a caller that decide what it sees."""

    @property
    def tenant_id(self) -> int: ...
    @property
    def worker_pk(self) -> int | None: ...


class TenantQuerySet(models.QuerySet[M]):
    """Rows that belong to a tenant."""

    def visible_to(self, caller: Seer) -> Self:
        """Only rows of the caller's tenant; what another tenant owns does not exist for it.

        A worker sees no rows by default; models that it may read say which.
        """
        mine = self.filter(tenant_id=caller.tenant_id)
        return mine if caller.worker_pk is None else mine._visible_to_worker(caller.worker_pk)

    def _visible_to_worker(self, worker_pk: int) -> Self:
        return self.none()
