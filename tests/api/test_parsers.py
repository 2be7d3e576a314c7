"""Which texts are taken as JSON, and how large and how long a body may be."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import RequestFactory
from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.unreader import IterUnreader

from mesh.api import parsers
from mesh.errors import DomainError

ACCEPTED: list[tuple[bytes, Any]] = [
    (b'{"a": 1e300}', {"a": 1e300}),
    (b'{"a": -0.0}', {"a": -0.0}),
    (b'{"a": 9223372036854775807}', {"a": 2**63 - 1}),
    (b'{"a": -9223372036854775808}', {"a": -(2**63)}),
    (b"[" * 64 + b"]" * 64, None),
    (b'{"a": "\\u00e9 \\ud83d\\ude00"}', {"a": "é 😀"}),
    ('{"ключ": "значение"}'.encode(), {"ключ": "значение"}),
    (b'{"a": "\\\\u0000 \\\\ud800"}', {"a": "\\u0000 \\ud800"}),
    (b' {"a": [true, false, null]} \n', {"a": [True, False, None]}),
]
MALFORMED = [
    b"{", b"}", b"nope", b"{'a': 1}", b'{"a": 1,}', b'{"a" 1}', b"{} {}", b"   ", b"\xff\xfe",
    b'\xef\xbb\xbf{"a": 1}', b'{"a": 01}', b'{"a": .5}', b'{"a": "\n"}', b'{"a": "\x00"}',
    b'{"a": "\\x"}', b'{"a": "\\u12"}', b"[" * 40, b"\x00", b"a=1&b=2", b"<a/>", b'{"\xff": ',
]  # fmt: skip
REFUSED = [
    b"[" * 65 + b"]" * 65,
    b'{"a":' * 65 + b"1" + b"}" * 65,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": -Infinity}',
    b'{"a": 1e999}',
    b'{"a": -1e999}',
    b'{"a": 9223372036854775808}',
    b'{"a": -9223372036854775809}',
    b'{"a": ' + b"9" * 5_000 + b"}",
    b'{"a": 1, "a": 1}',
    b'{"b": {"a": 1, "\\u0061": 2}}',
    b'{"a": "\\u0000"}',
    b'{"\\u0000": 1}',
    b'{"a": "\\ud800"}',
    b'{"a": "\\udc00\\ud800"}',
    b'{"\\uDFFF": 1}',
    b'[["\\ud83d"]]',
    b'{"a": "\xff"}',
    b'{"\xc3\x28": 1}',
    b'{"a": "\xed\xa0\x80"}',
]


@pytest.mark.parametrize(("body", "value"), ACCEPTED)
def test_strict_json_is_read_exactly(body: bytes, value: Any) -> None:
    found = parsers.loads(body)
    assert value is None or (found == value and repr(found) == repr(value))


@pytest.mark.parametrize("body", MALFORMED)
def test_what_is_no_json_is_malformed(body: bytes) -> None:
    with pytest.raises(DomainError) as refusal:
        parsers.loads(body)
    assert refusal.value.code == "REQUEST_MALFORMED"


@pytest.mark.parametrize("body", REFUSED)
def test_json_that_readers_take_differently_is_invalid(body: bytes) -> None:
    with pytest.raises(DomainError) as refusal:
        parsers.loads(body)
    assert refusal.value.code == "REQUEST_INVALID"


def read(body: bytes, limit: int, **meta: Any) -> bytes:
    """Read a body as a server hands it over; None takes a header away."""
    request = RequestFactory().generic("POST", "/", body, content_type="application/json")
    request.META |= {name: value for name, value in meta.items() if value is not None}
    for header in [name for name, value in meta.items() if value is None]:
        request.META.pop(header, None)
    return parsers.read(request, limit)


def test_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert read(b"x" * 10, 10) == b"x" * 10
    with pytest.raises(DomainError) as refusal:
        read(b"x" * 11, 10)
    assert refusal.value.code == "BODY_TOO_LARGE"


@pytest.mark.parametrize("size", [1, 10, 11, 5_000])
def test_chunks_without_a_length_are_bounded_too(size: int) -> None:
    chunks = {
        "CONTENT_LENGTH": None,
        "wsgi.input_terminated": True,
        "wsgi.input": io.BytesIO(b"x" * size),
    }
    if size <= 10:
        assert read(b"", 10, **chunks) == b"x" * size
    else:
        with pytest.raises(DomainError) as refusal:
            read(b"", 10, **chunks)
        assert refusal.value.code == "BODY_TOO_LARGE"


@pytest.mark.parametrize(("length", "left"), [(3_000_000, 0), (20_000_000, 20_000_000)])
def test_the_rest_of_a_refused_body_is_read_so_that_the_connection_lives_unless_it_is_very_long(
    length: int, left: int
) -> None:
    body = io.BytesIO(b"x" * length)
    request = RequestFactory().generic("POST", "/", b"", content_type="application/json")
    request.META |= {"CONTENT_LENGTH": str(length)}
    request._stream = body
    with pytest.raises(DomainError):
        parsers.read(request, 10)
    assert len(body.read()) == left


BROKEN_CHUNKS = [
    b"zz\r\nx\r\n", b"-1\r\nx", b"5\r\nab", b"2\r\nabc\r\n0\r\n\r\n", b"2\r\nab\r\n", b"",
    b"1;a\rb\r\nx\r\n0\r\n\r\n", b"1" * 20 + b"\r\nx",
]  # fmt: skip


@pytest.mark.parametrize("sent", BROKEN_CHUNKS)
def test_broken_chunks_are_malformed(sent: bytes) -> None:
    body = Body(ChunkedReader(SimpleNamespace(), IterUnreader(iter([sent]))))
    with pytest.raises(DomainError) as refusal:
        read(b"", 10, CONTENT_LENGTH=None, **{"wsgi.input_terminated": True, "wsgi.input": body})
    assert refusal.value.code == "REQUEST_MALFORMED"


@pytest.mark.parametrize("sent", [b"", b"{}"])
def test_a_body_that_ends_before_its_length_is_malformed(sent: bytes) -> None:
    with pytest.raises(DomainError) as refusal:
        read(sent, 10, CONTENT_LENGTH="9")
    assert refusal.value.code == "REQUEST_MALFORMED"


@pytest.mark.parametrize("length", ["11", "9" * 30, "99999999999999999999999999"])
def test_a_length_over_the_limit_is_refused_before_reading(length: str) -> None:
    with pytest.raises(DomainError) as refusal:
        read(b"x", 10, CONTENT_LENGTH=length)
    assert refusal.value.code == "BODY_TOO_LARGE"


@pytest.mark.parametrize("length", ["-1", "ten", "", "1e3", "²", "0x10"])
def test_a_length_that_is_no_number_is_no_body(length: str) -> None:
    assert read(b"xx", 10, CONTENT_LENGTH=length) == b""
