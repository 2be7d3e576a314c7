"""How numbers and times are told to people, in sentences and on screens."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

_RESOURCES: Final[Mapping[str, str]] = {
    "cpu_millis": "cpu",
    "memory_bytes": "memory",
    "disk_bytes": "disk",
    "gpu_count": "gpu",
}
_UNITS: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def span(length: timedelta) -> str:
    """A length of time in its two largest units at most: `42 s`, `3 min`, `5 h 10 min`, `12 d`."""
    seconds = int(abs(length).total_seconds())
    if seconds < 60:
        return f"{seconds} s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if minutes < 60:
        return f"{minutes} min"
    if hours < 24:
        rest = minutes % 60
        return f"{hours} h {rest} min" if rest and hours < 10 else f"{hours} h"
    rest = hours % 24
    return f"{days} d {rest} h" if rest and days < 3 else f"{days} d"


def moment(at: datetime) -> str:
    """A time in full."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def number(value: int) -> str:
    """Long numbers in groups of three."""
    return f"{value:,}".replace(",", " ")


def count(value: int, noun: str) -> str:
    """`1 worker`, `12 workers`."""
    return f"{number(value)} {noun if value == 1 else f'{noun}s'}"


def amount(key: str, value: int) -> str:
    """How much of a resource: `16 GiB`, `500 millis`, `2`."""
    if not key.endswith("_bytes"):
        return f"{value} millis" if key == "cpu_millis" else str(value)
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value} bytes"


def resource(key: str, value: int) -> str:
    """A resource with its amount: `16 GiB of memory`."""
    return f"{amount(key, value)} of {_RESOURCES.get(key, key)}"
