"""The console as a site: home page, its live part, and the search for an id."""

from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path
from unfold.dataclasses import SearchResult

from . import display

if TYPE_CHECKING:  # the theme comes without types
    from django.contrib.admin import AdminSite as UnfoldAdminSite
else:
    from unfold.sites import UnfoldAdminSite


class ConsoleSite(UnfoldAdminSite):
    """Django's admin site with our home page."""

    enable_nav_sidebar = True
    index_title = "Home"

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Every page tells its ages against one time, read for it."""
        guarded = super().admin_view(view, cacheable)

        def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            display.forget_now()
            answer: HttpResponse = guarded(request, *args, **kwargs)
            return answer

        return inner

    def get_urls(self) -> list[Any]:
        own = [
            path("live/", self.admin_view(self.live), name="live"),
            path("find/", self.admin_view(self.find), name="find"),
        ]
        return own + list(super().get_urls())

    def index(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:
        """Is anything wrong?"""
        from . import home

        request.current_app = self.name
        context = {
            **self.each_context(request),
            "title": self.index_title,
            "subtitle": None,
            "home": home.overview(request),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "fencepost/home.html", context)

    def live(self, request: HttpRequest) -> HttpResponse:
        """The part of the home page that refreshes itself."""
        from . import home

        return TemplateResponse(request, "fencepost/_home.html", {"home": home.overview(request)})

    def app_index(
        self, request: HttpRequest, app_label: str, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """There is one app; its index is the home page."""
        return redirect("admin:index")

    def find(self, request: HttpRequest) -> HttpResponse:
        """The row that has this id or name; a list of them when it is not one."""
        from . import search

        found = search.find(request, request.GET.get("q", ""))
        if len(found) == 1:
            return redirect(found[0].url)
        context = {
            **self.each_context(request),
            "title": "Find",
            "subtitle": None,
            "found": found,
            "query": request.GET.get("q", ""),
        }
        return TemplateResponse(request, "fencepost/find.html", context)

    def search(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The same for the command palette. Nothing is kept: rights may change meanwhile."""
        from . import search

        results = [
            SearchResult(title=each.title, description=each.kind, link=each.url, icon=each.icon)
            for each in search.find(request, request.GET.get("s", ""))
        ]
        pages = Paginator(results, max(len(results), 1))
        context = {"page_obj": pages, "results": pages.page(1), "page_counter": 0}
        return TemplateResponse(
            request,
            "unfold/helpers/command_results.html",
            {**context, "execution_time": 0, "command_show_history": False},
            headers={"HX-Trigger": "search"},
        )

    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Signing out leads back to the sign-in page."""
        answer = super().logout(request, extra_context)
        return redirect("admin:login") if request.method == "POST" else answer
