"""What the console's templates need beside Django's own tags."""

from typing import Any

from django import template
from django.contrib.admin.templatetags.admin_list import result_headers, results

from ..admin import display
from ..admin.pages import Facts, Table
from ..words import moment

register = template.Library()
register.filter("age", display.age)
register.filter("absolute", moment)
register.simple_tag(display.badge, name="badge")
register.simple_tag(display.countdown, name="countdown")


@register.filter
def kind_of(block: object) -> str:
    """Which partial draws a block of a detail page."""
    if isinstance(block, Table):
        return "table"
    return "facts" if isinstance(block, Facts) else "html"


@register.simple_tag
def console_table(cl: Any) -> dict[str, Any]:
    """Headers and rows of a list, as Django's own admin makes them."""
    return {"headers": list(result_headers(cl)), "rows": list(results(cl))}


@register.simple_tag
def page_links(cl: Any) -> dict[str, str]:
    """The addresses of the pages before and after this one; empty where there is none."""
    last = cl.paginator.num_pages
    return {
        "previous": cl.get_query_string({"p": cl.page_num - 1}) if cl.page_num > 1 else "",
        "next": cl.get_query_string({"p": cl.page_num + 1}) if cl.page_num < last else "",
    }
