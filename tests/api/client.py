"""Calling the API as a program does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from django.test import Client

from mesh.errors import CODES

BASE: Final = "/api/v1"
_JSON: Final = "application/json"


@dataclass
class Answer:
    status: int
    json: Any
    headers: Any
    text: str

    @property
    def code(self) -> str:
        return str(self.json["code"])


def call(
    method: str,
    path: str,
    body: Any = None,
    *,
    secret: str | None = None,
    raw: bytes | None = None,
    content_type: str = _JSON,
    **headers: str,
) -> Answer:
    """One call; `body` is sent as JSON, `raw` as it is."""
    data = raw if raw is not None else (b"" if body is None else json.dumps(body).encode())
    if secret is not None:
        headers["HTTP_AUTHORIZATION"] = f"Bearer {secret}"
    target = path if path.startswith("/") else f"{BASE}/{path}"
    said: dict[str, Any] = {**headers, "content_type": content_type if data else ""}
    response = Client().generic(method, target, data, **said)
    text = response.content.decode()
    is_json = "json" in response.headers.get("Content-Type", "")
    return Answer(
        response.status_code, json.loads(text) if is_json else None, response.headers, text
    )


def get(path: str, secret: str | None = None, **options: Any) -> Answer:
    return call("GET", path, secret=secret, **options)


def post(path: str, body: Any = None, secret: str | None = None, **options: Any) -> Answer:
    return call("POST", path, body, secret=secret, **options)


def assert_refused(answer: Answer, code: str) -> None:
    """A problem with exactly this code, and the status and kind that belong to it."""
    assert answer.json is not None, answer.text
    assert answer.code == code, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.status, answer.json["status"]) == (CODES[code].status, CODES[code].status)
    assert answer.json["kind"] == CODES[code].kind
    assert answer.json["type"] == "about:blank"
    assert answer.json["title"]
    assert answer.json["detail"]
