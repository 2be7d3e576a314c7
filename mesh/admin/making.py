"""Pages that make a right and show its secret: once, in the answer of the POST, nowhere else."""

from abc import abstractmethod
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.text import capfirst

from ..errors import DomainError
from ..models import Role
from . import access
from .base import ConsoleAdmin


class MakingAdmin(ConsoleAdmin):
    """A model of which admins make new rows by a form."""

    maker_form: ClassVar[Any]
    maker_intro = ""

    def may_make(self, request: HttpRequest) -> bool:
        return access.can(request, Role.ADMIN)

    @abstractmethod
    def make(self, request: HttpRequest, data: dict[str, Any]) -> tuple[Any, str]:
        """Call the domain; the new row, and its secret if it has one."""

    def maker_view(self, request: HttpRequest) -> HttpResponse:
        """GET shows the form; POST makes the row and shows its secret, in an uncached answer."""
        if not self.may_make(request):
            raise PermissionDenied
        if request.method != "POST":
            return self._form_page(request, self.maker_form(request))
        filled = self.maker_form(request, request.POST)
        if not filled.is_valid():
            return self._form_page(request, filled)
        try:
            row, secret = self.make(request, filled.cleaned_data)
        except DomainError as refusal:
            filled.add_error(None, f"{refusal.code}: {refusal.detail}")
            return self._form_page(request, filled)
        return self._made_page(request, row, secret)

    def _form_page(self, request: HttpRequest, form: forms.Form) -> HttpResponse:
        if self.maker is None:
            raise Http404
        return self.render(
            request,
            "fencepost/make.html",
            title=self.maker.label,
            subtitle=None,
            maker=self.maker,
            intro=self.maker_intro,
            form=form,
            back_url=reverse(f"admin:{self.url('changelist')}"),
        )

    def _made_page(self, request: HttpRequest, row: Any, secret: str) -> HttpResponse:
        answer = self.render(
            request,
            "fencepost/made.html",
            title=capfirst(f"{self.opts.verbose_name} {row}"),
            subtitle=None,
            row=row,
            secret=secret,
            row_url=reverse(f"admin:{self.url('change')}", args=[row.pk]),
            list_url=reverse(f"admin:{self.url('changelist')}"),
        )
        answer["Cache-Control"] = "no-store"
        answer["Referrer-Policy"] = "no-referrer"
        return answer
