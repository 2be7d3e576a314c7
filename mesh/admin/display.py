"""How facts look on the screens: states as badges, times as ages, JSON folded.

A state is told by its word and an icon, never by colour alone. Ages are told against the database
clock, read once per request; the absolute time stands in the title.
"""

import json
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from .. import clock
from ..models import State
from ..words import moment, span

ABSENT: Final = mark_safe('<span class="fp-absent">–</span>')
_MAX_JSON: Final = 100_000
_now: ContextVar[datetime | None] = ContextVar("console_now", default=None)


class Look(NamedTuple):
    """Tone (a colour of the style sheet) and icon of a state."""

    tone: str
    icon: str


_LOOKS: Final = {
    # workers
    "REGISTERED": Look("info", "fiber_new"),
    "READY": Look("good", "check_circle"),
    "BUSY": Look("active", "bolt"),
    "DRAINING": Look("warn", "hourglass_bottom"),
    "OFFLINE": Look("bad", "cloud_off"),
    "RECOVERING": Look("info", "healing"),
    "REMOVED": Look("calm", "archive"),
    "SILENT": Look("bad", "volume_off"),
    "DEAF": Look("warn", "hearing_disabled"),
    "HEALTHY": Look("good", "favorite"),
    "DEGRADED": Look("warn", "warning"),
    "UNHEALTHY": Look("bad", "error"),
    "UNKNOWN": Look("calm", "help"),
    # work and attempts
    "CREATED": Look("calm", "fiber_new"),
    "QUEUED": Look("info", "schedule"),
    "CLAIMED": Look("info", "front_hand"),
    "RUNNING": Look("active", "play_circle"),
    "CHECKPOINTED": Look("active", "flag"),
    "HELD": Look("warn", "back_hand"),
    "CANCELLATION_REQUESTED": Look("warn", "pending"),
    "SUCCEEDED": Look("good", "check_circle"),
    "FAILED": Look("bad", "cancel"),
    "CANCELLED": Look("calm", "block"),
    "TIMED_OUT": Look("bad", "timer_off"),
    "DEAD_LETTER": Look("bad", "report"),
    "WORKER_LOST": Look("bad", "link_off"),
    "RELEASED": Look("calm", "undo"),
    # why work waits
    "DELAYED": Look("info", "schedule"),
    "BLOCKED": Look("warn", "account_tree"),
    "UNPLACEABLE": Look("bad", "person_off"),
    "ELIGIBLE": Look("good", "check_circle"),
    "UNFIT": Look("calm", "block"),
    "STANDING": Look("warn", "pause_circle"),
    "LIFTED": Look("calm", "play_circle"),
    "OVER": Look("calm", "event_available"),
    # rights
    "ACTIVE": Look("good", "verified_user"),
    "REVOKED": Look("bad", "gpp_bad"),
    "EXPIRED": Look("calm", "event_busy"),
    "SUPERSEDED": Look("calm", "swap_horiz"),
    # runs of workflows and their steps
    "COMPLETED": Look("good", "check_circle"),
    "PENDING": Look("calm", "pending"),
    "SKIPPED": Look("calm", "skip_next"),
    "UNSETTLED": Look("active", "play_circle"),
    "AMBIGUOUS": Look("bad", "help"),
    "NOT STARTED": Look("calm", "undo"),
    "ABANDONED": Look("warn", "person_cancel"),
    "PAUSED": Look("warn", "pause_circle"),
    "CANCELLING": Look("warn", "pending"),
    "CANNOT GO ON": Look("bad", "error"),
    "BARRED": Look("warn", "front_hand"),
    "ALIVE": Look("good", "favorite"),
    "LATE TO BEAT": Look("warn", "warning"),
    "GONE": Look("bad", "cloud_off"),
    "RELINQUISHED": Look("calm", "archive"),
    "COMPLETE": Look("good", "check_circle"),
    "INCOMPLETE": Look("warn", "pending"),
    # sweeps and incidents
    "ON TIME": Look("good", "check_circle"),
    "LATE": Look("bad", "alarm"),
    "NEVER RAN": Look("warn", "alarm_off"),
    "OPEN": Look("bad", "emergency_home"),
    "CLOSED": Look("calm", "task_alt"),
    # people
    "viewer": Look("calm", "visibility"),
    "operator": Look("info", "build"),
    "admin": Look("active", "shield_person"),
}


def forget_now() -> None:
    """Called at the start of each request, so that its ages are told against one fresh time."""
    _now.set(None)


def now() -> datetime:
    """The database's time as of this request."""
    at = _now.get()
    if at is None:
        at = clock.now()
        _now.set(at)
    return at


def badge(state: str, text: str = "") -> SafeString:
    """A state as a word with an icon on its tone."""
    look = _LOOKS.get(state, Look("calm", "circle"))
    return format_html(
        '<span class="fp-badge is-{}"><span class="fp-icon" aria-hidden="true">{}</span>{}</span>',
        look.tone,
        look.icon,
        text or state.replace("_", " "),
    )


def state_badge(state: str) -> SafeString:
    """The state of a workload: READY means that it waits, whereas a READY worker is well."""
    return badge("QUEUED" if state == State.READY else state, state.replace("_", " "))


def milliseconds(value: int | None) -> str:
    """A duration that is stored in milliseconds, for people."""
    if value is None:
        return "–"
    return f"{value} ms" if value < 1000 else span(timedelta(milliseconds=value))


def took(start: datetime, end: datetime) -> str:
    """How long something took, down to milliseconds."""
    return milliseconds(int((end - start).total_seconds() * 1000))


def age(at: datetime | None, *, absent: str = "") -> SafeString:
    """`3 min ago` or `in 3 min`, with the absolute time in the title."""
    if at is None:
        return format_html('<span class="fp-absent">{}</span>', absent or "–")
    distance = now() - at
    words = f"in {span(distance)}" if distance < timedelta(0) else f"{span(distance)} ago"
    return _time(at, words)


def countdown(at: datetime) -> SafeString:
    """What is left until `at`; once it is over, for how long."""
    left = at - now()
    words = f"{span(left)} left" if left > timedelta(0) else f"over for {span(left)}"
    return _time(at, words, " fp-over" if left <= timedelta(0) else "")


def _time(at: datetime, words: str, extra: str = "") -> SafeString:
    return format_html(
        '<time class="fp-time{}" datetime="{}" title="{}">{}</time>',
        extra,
        at.isoformat(),
        moment(at),
        words,
    )


def two_lines(first: object, second: object) -> SafeString:
    """A cell with a main line and a quieter one below."""
    return format_html(
        '<span class="fp-two"><span>{}</span><span class="fp-sub">{}</span></span>', first, second
    )


def named(name: object, public_id: str) -> SafeString:
    """A name with the id below it."""
    return two_lines(name, mono(public_id))


def mono(text: str) -> SafeString:
    return format_html('<code class="fp-mono">{}</code>', text)


def copyable(text: str) -> SafeString:
    """An id with a button that copies it (the button appears with JavaScript only)."""
    return format_html('<code class="fp-mono" data-copy>{}</code>', text)


def link(url: str, text: object) -> SafeString:
    return format_html('<a class="fp-link" href="{}">{}</a>', url, text)


def page_of(row: Any, text: object = "") -> SafeString:
    """A link to the page of a row."""
    return link(page_url(row), text or str(row))


def page_url(row: Any) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def list_of(model: Any, text: object, **filters: object) -> SafeString:
    """A link to a list, filtered."""
    return link(list_url(model, **filters), text)


def list_url(model: Any, **filters: object) -> str:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return reverse(name, query={key: str(value) for key, value in filters.items()} or None)


def chips(words: Iterable[object], *, tone: str = "calm", empty: str = "none") -> SafeString:
    """Short words side by side."""
    listed = [(tone, word) for word in words]
    if not listed:
        return format_html('<span class="fp-absent">{}</span>', empty)
    return format_html(
        '<span class="fp-chips">{}</span>',
        format_html_join("", '<span class="fp-chip is-{}">{}</span>', listed),
    )


def pairs(mapping: dict[str, Any], *, empty: str = "none") -> SafeString:
    """A mapping as `key = value` chips; what is not set is left out."""
    told = ((key, value) for key, value in mapping.items() if value not in (None, "", [], {}))
    return chips((f"{key} = {_words(value)}" for key, value in told), empty=empty)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {each}" for key, each in value.items())
    return str(value)


def short(text: str, length: int = 18) -> SafeString:
    """A long id, cut; whole in the title."""
    if len(text) <= length + 2:
        return format_html("{}", text)
    return format_html('<span title="{}">{}…</span>', text, text[:length])


def clipped(text: object) -> SafeString:
    """Text on one line that ends where its column does; whole in the title."""
    return format_html('<span class="fp-clip" title="{0}">{0}</span>', text) if text else ABSENT


def stack(*blocks: object) -> SafeString:
    """Several folded values in one card."""
    return format_html(
        '<div class="fp-stack">{}</div>', format_html_join("", "{}", ((each,) for each in blocks))
    )


def bar(used: int, total: int) -> SafeString:
    """Capacity: `3 / 8` with a bar."""
    share = 100 if total <= 0 else min(round(100 * used / total), 100)
    return format_html(
        '<span class="fp-bar"><span class="fp-bar-track" aria-hidden="true">'
        '<span class="fp-bar-fill{}" style="width:{}%"></span></span>'
        "<span>{} / {}</span></span>",
        " is-full" if used >= total else "",
        share,
        used,
        total,
    )


def folded(value: Any, *, title: str, empty: str = "none", is_open: bool = False) -> SafeString:
    """A JSON value, folded; a very long one is cut, and says so."""
    if value is None or value in ({}, []):
        return format_html(
            '<p class="fp-fold-none"><b>{}</b> <span class="fp-absent">{}</span></p>', title, empty
        )
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False)
    note = ""
    if len(text) > _MAX_JSON:
        note = f" – the first {_MAX_JSON:,} of {len(text):,} characters; the API has all"
        text = text[:_MAX_JSON]
    return _fold(title, f"{_summary(value)}{note}", text, is_open=is_open)


def folded_text(text: str, *, title: str) -> SafeString:
    """Plain text (logs), folded; a very long one is cut, and says so."""
    if not text:
        return format_html(
            '<p class="fp-fold-none"><b>{}</b> <span class="fp-absent">none</span></p>', title
        )
    note = f"{len(text):,} characters"
    if len(text) > _MAX_JSON:
        note += f" – the last {_MAX_JSON:,} are shown; the API has all"
        text = text[-_MAX_JSON:]
    return _fold(title, note, text, is_open=False)


def _fold(title: str, note: str, text: str, *, is_open: bool) -> SafeString:
    return format_html(
        '<details class="fp-fold"{}><summary><b>{}</b> <span class="fp-sub">{}</span></summary>'
        '<pre tabindex="0">{}</pre></details>',
        mark_safe(" open") if is_open else "",
        title,
        note,
        text,
    )


def _summary(value: Any) -> str:
    if isinstance(value, dict):
        return f"{len(value)} {'key' if len(value) == 1 else 'keys'}"
    if isinstance(value, list):
        return f"{len(value)} {'item' if len(value) == 1 else 'items'}"
    return "one value"


def compact(value: Any) -> SafeString:
    """Evidence of an event on one line."""
    if not value:
        return ABSENT
    parts = [
        f"{key}: {_brief(each)}" for key, each in value.items() if each not in (None, "", [], {})
    ]
    text = " · ".join(parts)
    if not text:
        return ABSENT
    return clipped(text[:2000])


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def lines(values: Iterable[object]) -> SafeString:
    """Values one below the other."""
    listed = [(each,) for each in values]
    return format_html_join(mark_safe("<br>"), "{}", listed) if listed else ABSENT


def wrapped(value: object) -> SafeString:
    """A cell of words, which may take several lines."""
    return format_html('<span class="fp-wrap">{}</span>', value)


def external(uri: str) -> SafeString:
    """An artifact's address: a link only for http(s), and one that tells the target nothing."""
    if uri.lower().startswith(("http://", "https://")):
        return format_html(
            '<a class="fp-link" href="{}" rel="noopener noreferrer nofollow">{}</a>', uri, uri
        )
    return mono(uri)
