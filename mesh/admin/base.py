"""What all pages of the console share: who sees which rows, lists, details and acts.

Nothing is added, changed or deleted by forms that write rows: rows change by the domain functions
alone. Lists and pages are bounded: counting stops at 10 000, pages hold 50 rows.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import messages
from django.contrib.admin import display as admin_display
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from . import access
from .acts import MAX_ROWS, Act, Report, keys, run
from .pages import Page
from .paging import CappedPaginator

if TYPE_CHECKING:  # the theme comes without types; its classes are Django's with more templates
    from django.contrib.admin import ModelAdmin as _ModelAdmin
    from django.contrib.admin.views.main import ChangeList

    ModelAdmin = _ModelAdmin[Any]
else:
    from unfold.admin import ModelAdmin
    from unfold.views import ChangeList

PER_PAGE: Final = 50


@dataclass(frozen=True)
class Button:
    """An act on a detail page; without an address it is shown disabled, with the why."""

    act: Act
    url: str
    why_not: str


@dataclass(frozen=True)
class Maker:
    """A form that makes something: where it is, what it says, who may use it."""

    name: str
    label: str
    icon: str


class ConsoleList(ChangeList):
    """A list whose rows its page may narrow once more, after the filters."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        page: Any = self.model_admin
        rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        narrowed: QuerySet[Any] = page.get_list_queryset(request, rows)
        return narrowed

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        # Nothing beside the count under the list: the theme's head would name another.
        self.full_result_count = self.result_count


class ConsoleAdmin(ModelAdmin):
    """A model in the console: read-only, bounded, scoped to the person's tenants."""

    # Where a row's tenant stands; empty for rows of the server itself, which every member sees.
    tenant_path: ClassVar[str] = "tenant"
    # Read together with each row, so that no row asks for its own.
    related: ClassVar[tuple[str, ...]] = ()
    # Wide columns that lists do not show.
    deferred: ClassVar[tuple[str, ...]] = ()
    acts: ClassVar[tuple[Act, ...]] = ()
    maker: ClassVar[Maker | None] = None
    # A public id that may stand in the address in place of the key.
    public_id_field: ClassVar[str] = ""
    # What the lists are called; by default as the model is.
    called: ClassVar[str] = ""
    empty_title: ClassVar[str] = "Nothing here yet"
    empty_text: ClassVar[str] = ""
    about: ClassVar[str] = ""

    change_list_template = "fencepost/list.html"
    list_per_page = PER_PAGE
    list_max_show_all = 0
    show_full_result_count = False
    paginator = CappedPaginator
    sortable_by = ()
    list_fullwidth = True

    # --- who sees what ----------------------------------------------------------------------------

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        if not access.callers(request):
            return False
        return obj is None or self.get_queryset(request).filter(pk=obj.pk).exists()

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.model._default_manager.order_by(*self.get_ordering(request))
        rows = rows.select_related(*self.related).defer(*self.deferred)
        if not self.tenant_path:
            return rows if access.callers(request) else rows.none()
        return rows.filter(**{f"{self.tenant_path}__in": access.tenant_ids(request)})

    def get_list_queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of a list; those of a big table without an index for it are fewer."""
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ConsoleList]:
        return ConsoleList

    def get_ordering(self, request: HttpRequest) -> Any:
        return self.ordering or self.opts.ordering or ("-pk",)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        if self.public_id_field and not object_id.isdigit():
            if "\0" in object_id:
                return None
            return self.get_queryset(request).filter(**{self.public_id_field: object_id}).first()
        return super().get_object(request, object_id, from_field)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        # Only the filters on the page: a free lookup could test columns that are not shown.
        return lookup in {getattr(each, "parameter_name", None) for each in self.list_filter}

    def shows_tenant(self, request: HttpRequest) -> bool:
        return len(access.callers(request)) > 1

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        hidden = () if self.shows_tenant(request) else ("show_tenant",)
        return [each for each in self.list_display if each not in hidden]

    def get_paginator(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        per_page: int,
        orphans: int = 0,
        allow_empty_first_page: bool = True,
    ) -> CappedPaginator:
        return CappedPaginator(queryset, per_page, orphans, allow_empty_first_page)

    # --- addresses --------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        own = [
            path(
                "act/<slug:name>/", self.admin_site.admin_view(self.act_view), name=self.url("act")
            )
        ]
        if self.maker:
            view = self.admin_site.admin_view(self.maker_view)
            own.append(path(f"{self.maker.name}/", view, name=self.url("maker")))
        return own + list(super().get_urls())

    @property
    def heading(self) -> str:
        return self.called or str(self.opts.verbose_name_plural).capitalize()

    def url(self, what: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{what}"

    # --- list -------------------------------------------------------------------------------------

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The list; choosing an act there leads to its form."""
        can_make = self.maker is not None and self.may_make(request)
        context = {
            "title": self.heading,
            "about": self.about,
            "empty_title": self.empty_title,
            "empty_text": self.empty_text,
            "maker": self.maker if can_make else None,
            "maker_url": reverse(f"admin:{self.url('maker')}") if can_make else "",
            "list_acts": self.list_acts(request),
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def allowed_acts(self, request: HttpRequest) -> list[Act]:
        return [each for each in self.acts if each.is_allowed(request)]

    def list_acts(self, request: HttpRequest) -> list[Act]:
        """Those that make sense for several rows."""
        return [each for each in self.allowed_acts(request) if each.most > 1]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Acts of the list, by name: choosing one shows its form, nothing is done yet."""
        return {each.name: (_ask(each), each.name, each.label) for each in self.list_acts(request)}

    @admin_display(description="Choose")
    def action_checkbox(self, obj: Model) -> SafeString:
        return format_html(
            '<input type="checkbox" class="action-select" name="{}" value="{}"'
            ' aria-label="Choose {}">',
            ACTION_CHECKBOX_NAME,
            obj.pk,
            obj,
        )

    # --- detail -----------------------------------------------------------------------------------

    def page(self, request: HttpRequest, row: Any) -> Page:
        """What the detail page of a row shows."""
        raise NotImplementedError

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The page of one row, to read."""
        if request.method not in {"GET", "HEAD"}:
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        page = self.page(request, row)
        return self.render(
            request,
            "fencepost/detail.html",
            title=page.title,
            subtitle=None,
            original=row,
            page=page,
            buttons=self.buttons(request, row),
        )

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The history stands on the page itself."""
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        address = reverse(f"admin:{self.url('change')}", args=[row.pk])
        return redirect(f"{address}#history")

    def buttons(self, request: HttpRequest, row: Any) -> list[Button]:
        listed = []
        for act in self.acts:
            is_allowed = act.is_allowed(request, row.tenant_id)
            why_not = act.why_not(row) if is_allowed else act.needs
            url = reverse(f"admin:{self.url('act')}", args=[act.name], query={"id": row.pk})
            listed.append(Button(act, "" if why_not else url, why_not))
        return listed

    # --- acts -------------------------------------------------------------------------------------

    def act_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """GET shows the form for the rows `id`; POST does it to them and reports."""
        act = next((each for each in self.acts if each.name == name), None)
        if act is None:
            raise Http404
        if not act.is_allowed(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._do(request, act)
        return self.ask(request, act, keys(request.GET.getlist("id")))

    def ask(
        self, request: HttpRequest, act: Act, wanted: list[int], form: Any = None
    ) -> HttpResponse:
        """The form of an act: which rows are meant, what will happen, and why you do it."""
        seen = self._rows(request, wanted)
        if not wanted or len(wanted) > act.most or not seen:
            problem = (
                f"At most {act.most} {'row' if act.most == 1 else 'rows'} in one run;"
                " narrow the selection."
                if len(wanted) > act.most
                else "No such rows: choose some first."
            )
            messages.error(request, problem)
            return redirect(f"admin:{self.url('changelist')}")
        rows = [seen[key] for key in wanted if key in seen]
        return self.render(
            request,
            "fencepost/act.html",
            title=f"{act.label}: {_count(len(rows), self.opts)}",
            subtitle=None,
            act=act,
            form=form or act.form(initial=act.initial(rows[0]) if act.initial else None),
            effect=act.effect(rows) if act.effect else "",
            rows=[(each, act.why_not(each)) for each in rows],
            action_url=reverse(f"admin:{self.url('act')}", args=[act.name]),
            back_url=self._back_url(rows),
        )

    def _do(self, request: HttpRequest, act: Act) -> HttpResponse:
        wanted = keys(request.POST.getlist("id"))
        form = act.form(request.POST)
        if not form.is_valid() or not wanted or len(wanted) > act.most:
            return self.ask(request, act, wanted, form)
        rows = self._rows(request, wanted)
        report = run(request, act, wanted, rows, form.cleaned_data)
        if len(wanted) == 1 and wanted[0] in rows:
            return self._tell_one(request, act, report, rows[wanted[0]])
        return self.render(
            request,
            "fencepost/report.html",
            title=f"{act.label}: {report}",
            subtitle=None,
            act=act,
            report=report,
            reason=form.cleaned_data["reason"],
            list_url=reverse(f"admin:{self.url('changelist')}"),
            change_url=f"admin:{self.url('change')}",
        )

    def _tell_one(self, request: HttpRequest, act: Act, report: Report, row: Any) -> HttpResponse:
        outcome = report.outcomes[0]
        if outcome.is_done:
            messages.success(request, f"{act.label} {outcome.title}: {report}")
        else:
            messages.error(request, f"{act.label} {outcome.title}: {report}. {outcome.detail}")
        return redirect(f"admin:{self.url('change')}", row.pk)

    def _rows(self, request: HttpRequest, wanted: list[int]) -> dict[int, Any]:
        """Those of the wanted rows that the person may see."""
        rows = self.get_queryset(request).filter(pk__in=wanted[:MAX_ROWS])
        return {each.pk: each for each in rows}

    def _back_url(self, rows: list[Any]) -> str:
        if len(rows) == 1:
            return reverse(f"admin:{self.url('change')}", args=[rows[0].pk])
        return reverse(f"admin:{self.url('changelist')}")

    # --- making -----------------------------------------------------------------------------------

    def may_make(self, request: HttpRequest) -> bool:
        return False

    def maker_view(self, request: HttpRequest) -> HttpResponse:
        raise NotImplementedError

    def render(self, request: HttpRequest, template: str, **context: Any) -> TemplateResponse:
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            template,
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "crumbs": [(self.heading, reverse(f"admin:{self.url('changelist')}"))],
                **context,
            },
        )


def _ask(act: Act) -> Any:
    def ask(admin: ConsoleAdmin, request: HttpRequest, chosen: QuerySet[Any]) -> HttpResponse:
        wanted = list(chosen.order_by("pk").values_list("pk", flat=True)[: MAX_ROWS + 1])
        return admin.ask(request, act, wanted)

    return ask


def _count(number: int, opts: Any) -> str:
    return f"{number} {opts.verbose_name if number == 1 else opts.verbose_name_plural}"
