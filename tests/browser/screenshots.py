"""Pictures of the console: `python -m pytest tests/browser/screenshots.py`.

Not collected with the tests. They are written to the folder that FENCEPOST_SCREENSHOTS names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page
from pytest_django.live_server_helper import LiveServer

from mesh.models import Grant, Incident, Pool, Worker, Workload
from tests.admin import rows
from tests.browser import demo, demo_runs
from workflows.models import Coordinator, Run

pytestmark = pytest.mark.django_db(transaction=True)
FOLDER = Path(os.environ.get("FENCEPOST_SCREENSHOTS", "screenshots"))
ONLY = os.environ.get("FENCEPOST_SCREENSHOTS_ONLY", "")
LISTS = [
    "worker",
    "workload",
    "pool",
    "pause",
    "attempt",
    "requirement",
    "grant",
    "apitoken",
    "membership",
    "application",
    "tenant",
    "workloadevent",
    "workerevent",
    "auditentry",
    "sweeprun",
    "incident",
]

RUN_LISTS = ["run", "definition", "runattempt", "coordinator", "attestation"]


def take(page: Page, url: str, name: str) -> None:
    """The page in both themes and two widths."""
    if ONLY and not any(each in name for each in ONLY.split(",")):
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    themes = os.environ.get("FENCEPOST_SCREENSHOTS_THEMES", "light,dark").split(",")
    for theme in themes:
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        for width in (1440, 800):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(url)
            page.wait_for_load_state("networkidle")
            page.screenshot(
                path=FOLDER / f"{name}-{theme}-{width}.png", full_page=not name.startswith("list-")
            )


def test_pictures_with_much_data(
    sign_in: Callable[[User], Page], live_server: LiveServer, page: Page
) -> None:
    tenant = demo.fill()
    take(page, f"{live_server.url}/admin/login/", "login")
    page = sign_in(rows.person(tenant, name="ann"))
    base = f"{live_server.url}/admin"
    take(page, f"{base}/", "home")
    for each in LISTS:
        take(page, f"{base}/mesh/{each}/", f"list-{each}")
    for each in RUN_LISTS:
        take(page, f"{base}/workflows/{each}/", f"list-{each}")
    take_runs(page, f"{base}/workflows")
    worker = Worker.objects.get(name="extract-01")
    draining = Worker.objects.get(name="edge-oslo-1")
    rich = Workload.objects.get(idempotency_key="order-2026-000417")
    dead = Workload.objects.filter(state="DEAD_LETTER").first()
    running = Workload.objects.filter(state="RUNNING").first()
    assert dead
    assert running
    grant = Grant.objects.filter(status="ACTIVE").first()
    assert grant
    incident = Incident.objects.get()
    pool = Pool.objects.get()
    pages = {
        "worker": f"worker/{worker.pk}/change/",
        "worker-draining": f"worker/{draining.pk}/change/",
        "workload-rich": f"workload/{rich.pk}/change/",
        "workload-dead": f"workload/{dead.pk}/change/",
        "workload-running": f"workload/{running.pk}/change/",
        "attempt": f"attempt/{running.attempts.get().pk}/change/",
        "grant": f"grant/{grant.pk}/change/",
        "grant-issue": "grant/issue/",
        "grant-derive": f"grant/act/derive/?id={grant.pk}",
        "token-create": "apitoken/create/",
        "member-add": "membership/add-member/",
        "incident": f"incident/{incident.pk}/change/",
        "pool": f"pool/{pool.pk}/change/",
        "pool-change": f"pool/act/change/?id={pool.pk}",
        "pool-make": "pool/make/",
        "drain": f"worker/act/drain/?id={worker.pk}&id={draining.pk}",
        "workload-filtered": "workload/?q=nothing",
    }
    for name, path in pages.items():
        take(page, f"{base}/mesh/{path}", f"page-{name}")


def take_runs(page: Page, base: str) -> None:
    """The page of each run that is not simply done, and of what belongs to runs."""
    for run in Run.objects.exclude(status="COMPLETED"):
        take(page, f"{base}/run/{run.pk}/change/", f"page-run-{run.run_id}")
    done = Run.objects.filter(status="COMPLETED").latest("pk")
    stuck, attempt, _ = demo_runs.stuck()
    left = Run.objects.get(coordinator="external")
    pages = {
        "run-done": f"run/{done.pk}/change/",
        "runattempt": f"runattempt/{attempt.pk}/change/",
        "definition": f"definition/{stuck.definition_id}/change/",
        "attestation": f"attestation/{left.attestations.get().pk}/change/",
        "run-attest": f"run/act/attest/?id={left.pk}",
        "run-cancel": f"run/act/cancel/?id={stuck.pk}&id={left.pk}&id={done.pk}",
        "run-filtered": "run/?focus=person",
    }
    for row in Coordinator.objects.all():
        pages[f"coordinator-{row.instance_id}"] = f"coordinator/{row.pk}/change/"
    for name, path in pages.items():
        take(page, f"{base}/{path}", f"page-{name}")


def test_pictures_with_no_data(sign_in: Callable[[User], Page], live_server: LiveServer) -> None:
    page = sign_in(rows.person(rows.tenant("acme"), name="ann"))
    base = f"{live_server.url}/admin"
    take(page, f"{base}/", "empty-home")
    for each in ("worker", "workload", "grant", "sweeprun"):
        take(page, f"{base}/mesh/{each}/", f"empty-{each}")
    for each in RUN_LISTS:
        take(page, f"{base}/workflows/{each}/", f"empty-{each}")
