"""The console as a person uses it, in a real browser that may complain about nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from mesh.models import Grant, Lifecycle, Role, State, Worker, Workload
from tests.admin import rows
from tests.browser import demo

pytestmark = pytest.mark.django_db(transaction=True)
SignIn = Callable[[User], Page]
# Contrast of text against what is behind it, by the formula of WCAG 2; large text counts as 3:1.
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


def test_an_operator_looks_around_and_drains_a_worker(sign_in: SignIn) -> None:
    tenant = demo.fill()
    worker = Worker.objects.get(name="extract-01")
    page = sign_in(rows.person(tenant, Role.OPERATOR, "olga"))
    page.get_by_role("link", name=re.compile("Busy")).click()
    page.get_by_role("link", name=re.compile(worker.name)).click()
    expect(page.get_by_role("heading", name=worker.name)).to_be_visible()
    page.get_by_role("link", name="Drain…").click()
    page.get_by_role("button", name="Drain 1 worker").click()
    expect(page.get_by_label("Reason")).to_be_focused()
    page.get_by_label("Reason").fill("kernel update")
    page.get_by_role("button", name="Drain 1 worker").click()
    expect(page.get_by_text("1 done, 0 refused")).to_be_visible()
    expect(page.get_by_text("DRAINING").first).to_be_visible()
    worker.refresh_from_db()
    assert (worker.lifecycle, worker.drain_reason) == (Lifecycle.DRAINING, "kernel update")


def test_an_operator_acts_on_several_rows_and_reads_the_report(sign_in: SignIn) -> None:
    tenant = rows.tenant("acme")
    application = rows.application(tenant)
    rows.worker(application, "idle-host")
    rows.worker(application, "busy-host", active=1)
    page = sign_in(rows.person(tenant, Role.OPERATOR))
    page.get_by_role("link", name="Workers", exact=True).click()
    page.get_by_label("Choose all rows on this page").check()
    expect(page.get_by_text("2 chosen")).to_be_visible()
    page.get_by_label("With the chosen rows").select_option("remove")
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("Reason").fill("decommissioned")
    page.get_by_role("button", name="Remove 2 workers").click()
    expect(page.get_by_role("heading", name=re.compile("1 done, 1 refused"))).to_be_visible()
    expect(page.get_by_role("cell", name="WORKER_BUSY")).to_be_visible()


def test_an_operator_reads_a_workload_and_retries_it(sign_in: SignIn) -> None:
    tenant = demo.fill()
    dead = Workload.objects.filter(state=State.DEAD_LETTER).latest("created_at")
    page = sign_in(rows.person(tenant, Role.OPERATOR))
    page.get_by_role("link", name="Workloads", exact=True).click()
    page.get_by_label("State").select_option("DEAD_LETTER")
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("link", name=re.compile(dead.workload_id)).click()
    expect(page.get_by_text("Retry puts it back")).to_be_visible()
    expect(page.get_by_text("s3://inbox")).not_to_be_visible()
    page.get_by_text("Input", exact=True).click()
    expect(page.get_by_text("s3://inbox")).to_be_visible()
    page.get_by_role("link", name="Retry…").click()
    page.get_by_label("Reason").fill("the owner sent the password")
    page.get_by_role("button", name="Retry 1 workload").click()
    expect(page.get_by_text("1 done, 0 refused")).to_be_visible()
    expect(page.get_by_text("Why is it not running?")).to_be_visible()


def test_an_admin_issues_a_grant_and_sees_its_token_once(
    sign_in: SignIn, tmp_path: Path, settings: Settings
) -> None:
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key.pem").write_bytes(pem)
    settings.GRANT_KEY_FILE = str(tmp_path / "key.pem")
    page = sign_in(rows.person(rows.tenant("acme"), Role.ADMIN))
    page.get_by_role("link", name="Issue a grant").click()
    page.get_by_label("Capabilities").fill("worker:register\nworker:capability:documents.extract")
    page.get_by_role("button", name="Issue a grant").click()
    secret = page.locator("#secret").inner_text()
    assert secret.count(".") == 2
    page.get_by_role("link", name="Open grant").click()
    expect(page.get_by_role("heading", name="service:registrar")).to_be_visible()
    assert secret not in page.content()
    page.reload()
    assert secret not in page.content()
    assert Grant.objects.count() == 1


def test_a_viewer_is_told_why_a_button_is_off(sign_in: SignIn, live_server: LiveServer) -> None:
    tenant = rows.tenant("acme")
    worker = rows.worker(rows.application(tenant))
    page = sign_in(rows.person(tenant, Role.VIEWER))
    page.goto(f"{live_server.url}/admin/mesh/worker/{worker.pk}/change/")
    expect(page.get_by_role("button", name="Drain", exact=True)).to_be_disabled()
    page.locator(".fp-off").first.focus()
    expect(page.get_by_text("Needs the role operator.").first).to_be_visible()


def test_screens_without_data_say_what_to_do(sign_in: SignIn) -> None:
    page = sign_in(rows.person(rows.tenant("acme"), Role.VIEWER))
    expect(page.get_by_text("No worker has registered yet")).to_be_visible()
    page.get_by_role("link", name="Workers", exact=True).click()
    expect(page.get_by_text("Issue a grant that allows")).to_be_visible()
    page.get_by_role("link", name="Workloads", exact=True).click()
    expect(page.get_by_text("Work is submitted through the API")).to_be_visible()


def test_the_home_page_refreshes_itself(sign_in: SignIn, live_server: LiveServer) -> None:
    tenant = rows.tenant("acme")
    page = sign_in(rows.person(tenant, Role.VIEWER))
    expect(page.get_by_text("No worker has registered yet")).to_be_visible()
    rows.worker(rows.application(tenant))
    expect(page.get_by_text("No worker has registered yet")).not_to_be_visible(timeout=30_000)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Go on")).to_be_visible()


def test_an_id_is_found_from_every_page(sign_in: SignIn) -> None:
    tenant = rows.tenant("acme")
    workload = rows.workload(rows.application(tenant))
    page = sign_in(rows.person(tenant, Role.VIEWER))
    page.get_by_label("Find a worker, workload, attempt or grant").fill(workload.workload_id)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="documents.extract")).to_be_visible()


def test_everything_but_refreshing_works_without_javascript(
    browser: Browser, live_server: LiveServer
) -> None:
    tenant = rows.tenant("acme")
    worker = rows.worker(rows.application(tenant), "idle-host", active=1)
    rows.person(tenant, Role.OPERATOR, "olga")
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(f"{live_server.url}/admin/")
    page.get_by_label("User name").fill("olga")
    page.get_by_label("Password").fill(rows.PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Is anything wrong?")).to_be_visible()
    page.get_by_role("link", name="Workers", exact=True).first.click()
    page.get_by_label("Lifecycle").select_option("READY")
    page.get_by_role("button", name="Apply").click()
    page.locator("input.action-select").check()
    page.get_by_label("With the chosen rows").select_option("drain")
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("Reason").fill("kernel update")
    page.get_by_role("button", name="Drain 1 worker").click()
    expect(page.get_by_text("1 done, 0 refused")).to_be_visible()
    worker.refresh_from_db()
    assert worker.lifecycle == Lifecycle.DRAINING
    page.context.close()


def test_text_stands_out_from_what_is_behind_it(sign_in: SignIn, live_server: LiveServer) -> None:
    tenant = demo.fill()
    page = sign_in(rows.person(tenant, Role.ADMIN, "ann"))
    worker = Worker.objects.get(name="edge-oslo-1")
    dead = Workload.objects.filter(state=State.DEAD_LETTER).latest("created_at")
    paths = (
        "",
        "mesh/worker/",
        "mesh/workload/",
        f"mesh/worker/{worker.pk}/change/",
        f"mesh/workload/{dead.pk}/change/",
        f"mesh/worker/act/drain/?id={worker.pk}",
        "mesh/grant/issue/",
        "mesh/incident/",
    )
    for theme, path in itertools.product(("light", "dark"), paths):
        page.emulate_media(color_scheme=cast("Any", theme))
        page.goto(f"{live_server.url}/admin/{path}")
        assert page.evaluate(CONTRAST) == [], (theme, path)


def test_no_page_is_wider_than_the_window(sign_in: SignIn, live_server: LiveServer) -> None:
    tenant = demo.fill()
    page = sign_in(rows.person(tenant, Role.ADMIN, "ann"))
    worker = Worker.objects.get(name="extract-01")
    workload = Workload.objects.get(idempotency_key="order-2026-000417")
    paths = (
        "",
        "mesh/worker/",
        "mesh/workload/",
        "mesh/grant/",
        f"mesh/worker/{worker.pk}/change/",
        f"mesh/workload/{workload.pk}/change/",
        "mesh/grant/issue/",
    )
    for width, path in itertools.product((1440, 800, 400), paths):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{live_server.url}/admin/{path}")
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, (width, path)
        cut = page.evaluate(
            "[...document.querySelectorAll('.fp-badge')]"
            ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
        )
        assert cut == [], (width, path)


def test_every_control_of_a_page_is_reached_by_keyboard(
    sign_in: SignIn, live_server: LiveServer
) -> None:
    tenant = rows.tenant("acme")
    rows.worker(rows.application(tenant), "idle-host")
    page = sign_in(rows.person(tenant, Role.OPERATOR))
    page.goto(f"{live_server.url}/admin/mesh/worker/")
    page.wait_for_load_state("networkidle")
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.name || document.activeElement.innerText"))
    for control in ("q", "lifecycle", "Apply", "action", "index", "_selected_action"):
        assert control in seen, seen
    assert any("idle-host" in each for each in seen)
    unreachable = page.evaluate(
        "[...document.querySelectorAll('[x-on\\\\:click]')]"
        ".filter(e => e.tabIndex < 0).map(e => e.outerHTML.slice(0, 80))"
    )
    assert unreachable == []
