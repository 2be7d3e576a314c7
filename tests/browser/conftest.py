"""A real browser that looks at the console of a real server, with a database of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page
from pytest_django.live_server_helper import LiveServer

from tests.admin import rows

# The browser driver runs an event loop in this thread, where Django would refuse the database.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
)


@pytest.fixture(scope="session")
def browser_type_launch_args(chromium: str) -> dict[str, Any]:
    return {"executable_path": chromium, "args": _FLAGS.split()}


@pytest.fixture
def watched(page: Page, live_server: LiveServer) -> Iterator[Page]:
    """A page that may neither complain in its console nor ask another host for anything."""
    complaints: list[str] = []
    host = urlsplit(live_server.url).netloc

    def look(url: str) -> None:
        if urlsplit(url).scheme in {"http", "https"} and urlsplit(url).netloc != host:
            complaints.append(f"asked {url}")

    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: look(request.url))
    page.set_default_timeout(15_000)
    yield page
    assert complaints == []


@pytest.fixture
def sign_in(watched: Page, live_server: LiveServer) -> Callable[[User], Page]:
    """Sign a person in by the form, as a person would."""

    def signed_in(person: User) -> Page:
        watched.goto(f"{live_server.url}/admin/")
        watched.get_by_label("User name").fill(person.get_username())
        watched.get_by_label("Password").fill(rows.PASSWORD)
        watched.get_by_role("button", name="Sign in").click()
        watched.wait_for_url(f"{live_server.url}/admin/")
        return watched

    return signed_in
