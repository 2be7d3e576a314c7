"""How numbers and times are told to people, in sentences and on screens."""

from datetime import datetime, timedelta


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
