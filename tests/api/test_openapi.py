"""The OpenAPI document: complete, without warnings, and true."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from mesh.api.examples import EXAMPLES
from mesh.errors import CODES

from .calls import OPEN, WORKER
from .client import get
from .routes import ROUTES


@pytest.fixture(scope="module")
def document() -> Any:
    GENERATOR_STATS.reset()
    made = SchemaGenerator().get_schema(request=None, public=True)
    assert not GENERATOR_STATS, "drf-spectacular warns"
    return made


def operations(document: Any) -> dict[str, Any]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_the_document_is_valid_and_served(document: Any) -> None:
    validate_schema(document)
    answer = get("schema")
    assert answer.status == 200
    assert answer.json["openapi"].startswith("3.1")
    assert answer.json["paths"].keys() == document["paths"].keys()


def test_every_route_is_documented_with_its_callers_and_refusals(document: Any) -> None:
    found = operations(document)
    for route in ROUTES:
        if route.pattern in {"schema", "docs"}:
            continue
        path = re.sub(r"<any:(\w+)>", r"{\1}", route.pattern)
        said = found[f"{route.method} /api/v1/{path}"]
        schemes = {name for each in said.get("security", ()) for name in each}
        assert {
            OPEN: not schemes,
            WORKER: schemes == {"workerCredential"},
        }.get(route.needs, {"apiToken", "session"} <= schemes), route
        assert said["description"]
        assert ("requestBody" in said) == (route.method in {"POST", "PATCH"}), route
        refused = {status for status in said["responses"] if status >= "400"}
        assert {"406", "503"} | ({"401", "403"} if schemes else set()) <= refused
        for status in refused:
            (content,) = said["responses"][status]["content"].items()
            schema = {"$ref": "#/components/schemas/Problem"}
            assert content == ("application/problem+json", {"schema": schema})
            codes = said["responses"][status]["description"].split(", ")
            assert {CODES[code].status for code in codes} == {int(status)}


def test_bodies_take_no_other_members(document: Any) -> None:
    schemas = document["components"]["schemas"]
    for operation in operations(document).values():
        if "requestBody" in operation:
            (content,) = operation["requestBody"]["content"].items()
            assert content[0] == "application/json"
            name = content[1]["schema"]["$ref"].rpartition("/")[2]
            assert schemas[name]["additionalProperties"] is False, name


def test_every_body_has_an_example_that_is_accepted_as_it_stands(document: Any) -> None:
    shown = {
        name: example["value"]
        for operation in operations(document).values()
        if "requestBody" in operation
        for content in operation["requestBody"]["content"].values()
        for name in [content["schema"]["$ref"].rpartition("/")[2]]
        for example in content["examples"].values()
    }
    for body, value in EXAMPLES.items():
        assert body(data=value).is_valid(), body
        assert shown.pop(body.__name__) == value
    assert not shown


def test_the_docs_page_loads_nothing_from_elsewhere() -> None:
    client = Client()
    page = client.get("/api/v1/docs")
    script = client.get("/api/v1/docs?script=")
    assert (page.status_code, script.status_code) == (200, 200)
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.content.decode())
    assert len(sources) >= 4
    assert [each for each in sources if not each.startswith("/")] == []
    assert re.search(r"<script>", page.content.decode()) is None
    assert b"/api/v1/schema" in script.content
    files = [each.removeprefix("/static/") for each in sources if each.startswith("/static/")]
    assert len(files) >= 3
    assert [each for each in files if finders.find(each) is None] == []
