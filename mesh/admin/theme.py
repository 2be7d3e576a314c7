"""How the console looks and where its side bar leads: the settings of the admin theme."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy


def _asset(name: str) -> Callable[[HttpRequest], str]:
    return lambda request: static(f"fencepost/{name}")


def item(title: str, icon: str, model: str, *, app: str = "mesh") -> dict[str, Any]:
    """An entry of the side bar: the list of a model."""
    return {"title": title, "icon": icon, "link": reverse_lazy(f"admin:{app}_{model}_changelist")}


def also(title: str, items: Sequence[Mapping[str, Any]], *, after: str) -> None:
    """Have the side bar show one more group, after that of the title `after`."""
    groups: list[dict[str, Any]] = UNFOLD["SIDEBAR"]["navigation"]
    titles = [each.get("title") for each in groups]
    if title not in titles:
        groups.insert(titles.index(after) + 1, {"title": title, "items": list(items)})


UNFOLD: Final[dict[str, Any]] = {
    "SITE_TITLE": "Fencepost",
    "SITE_HEADER": "Fencepost",
    "SITE_SUBHEADER": "Worker mesh console",
    "SITE_SYMBOL": "fence",
    "SITE_URL": None,
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": _asset("fencepost.svg")},
    ],
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "BORDER_RADIUS": "8px",
    "STYLES": [_asset("fencepost.css")],
    "SCRIPTS": [_asset("fencepost.js")],
    "COLORS": {
        "base": {
            "50": "oklch(98.4% .003 247.858)",
            "100": "oklch(96.8% .007 247.896)",
            "200": "oklch(92.9% .013 255.508)",
            "300": "oklch(86.9% .022 252.894)",
            "400": "oklch(70.4% .04 256.788)",
            "500": "oklch(52% .046 257.417)",
            "600": "oklch(44.6% .043 257.281)",
            "700": "oklch(37.2% .044 257.287)",
            "800": "oklch(27.9% .041 260.031)",
            "900": "oklch(20.8% .042 265.755)",
            "950": "oklch(12.9% .042 264.695)",
        },
        "primary": {
            "50": "oklch(96.2% .018 272.314)",
            "100": "oklch(93% .034 272.788)",
            "200": "oklch(87% .065 274.039)",
            "300": "oklch(78.5% .115 274.713)",
            "400": "oklch(70.5% .15 276.9)",
            "500": "oklch(66% .17 277.117)",
            "600": "oklch(51.1% .22 276.966)",
            "700": "oklch(45.7% .21 277.023)",
            "800": "oklch(39.8% .18 277.366)",
            "900": "oklch(35.9% .144 278.697)",
            "950": "oklch(25.7% .09 281.288)",
        },
    },
    "COMMAND": {"search_models": False, "show_history": False},
    "SIDEBAR": {
        "show_search": True,
        "command_search": True,
        "navigation": [
            {
                "items": [
                    {"title": "Home", "icon": "home", "link": reverse_lazy("admin:index")},
                ],
            },
            {
                "title": "Work",
                "items": [
                    item("Workers", "dns", "worker"),
                    item("Pools", "workspaces", "pool"),
                    item("Workloads", "deployed_code", "workload"),
                    item("Pauses", "pause_circle", "pause"),
                    item("Attempts", "replay", "attempt"),
                    item("Requirements", "rule", "requirement"),
                ],
            },
            {
                "title": "Rights",
                "items": [
                    item("Grants", "verified_user", "grant"),
                    item("Revocations", "gpp_bad", "revocation"),
                    item("API tokens", "key", "apitoken"),
                    item("Members", "group", "membership"),
                    item("Applications", "apps", "application"),
                    item("Tenants", "domain", "tenant"),
                ],
            },
            {
                "title": "Records",
                "items": [
                    item("Work history", "history", "workloadevent"),
                    item("Worker history", "manage_history", "workerevent"),
                    item("Audit", "policy", "auditentry"),
                    item("Sweeps", "cleaning_services", "sweeprun"),
                    item("Incidents", "emergency_home", "incident"),
                ],
            },
        ],
    },
}
