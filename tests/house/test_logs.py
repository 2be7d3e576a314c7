"""No secret of ours ever stands in a log line, wherever it was said."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from collections.abc import Iterator

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings
from django.test import Client

from config import logs

SECRETS = {
    "an API token": "fpt_9cXh2-Kd_0aB7",
    "a worker credential": "fpw_9cXh2-Kd_0aB7",
    "a grant": jwt.encode({"sub": "x"}, Ed25519PrivateKey.generate(), algorithm="EdDSA"),
}
secrets = pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the product's own logging writes, with pytest's configuration put back afterwards."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    configuration = logs.configuration("DEBUG")["formatters"]["json"]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=configuration["foreign_pre_chain"],
            processors=configuration["processors"],
        )
    )
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel("DEBUG")
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


@secrets
def test_a_secret_in_a_message_is_masked(lines: io.StringIO, secret: str) -> None:
    logging.getLogger("anything").warning("got %s from a caller", secret)
    assert secret not in lines.getvalue()
    assert "from a caller" in json.loads(lines.getvalue())["event"]


@secrets
def test_a_secret_in_a_field_is_masked(lines: io.StringIO, secret: str) -> None:
    structlog.get_logger("mesh").info("refused", body={"deep": [{"grant": secret}]})
    assert secret not in lines.getvalue()
    assert json.loads(lines.getvalue())["event"] == "refused"


@secrets
def test_a_secret_in_an_exception_is_masked(lines: io.StringIO, secret: str) -> None:
    try:
        raise ValueError(f"bad header: Bearer {secret}")
    except ValueError:
        logging.getLogger("mesh").exception("failed")
    assert secret not in lines.getvalue()
    assert "ValueError: bad header" in json.loads(lines.getvalue())["exception"]


def test_a_secret_in_a_path_is_masked(lines: io.StringIO, client: Client) -> None:
    client.get(f"/nowhere/{SECRETS['an API token']}")
    assert "nowhere" in lines.getvalue()
    assert SECRETS["an API token"] not in lines.getvalue()


def test_what_only_looks_a_little_like_a_secret_is_kept() -> None:
    plain = "fpt is a prefix, eyJhbGciOi is a beginning, a.b.c has three parts"
    assert logs.mask(plain) == plain


def test_every_configured_handler_masks() -> None:
    assert {handler["formatter"] for handler in settings.LOGGING["handlers"].values()} == {"json"}
    assert all(not logger.get("handlers") for logger in settings.LOGGING["loggers"].values())
