"""How an instance hears of runs, by a session of its own beside the test's transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from mesh import lobby
from workflows import tasks, waking


class Listener(tasks.Ears):
    """Notes that it was told, instead of driving."""

    def __init__(self) -> None:
        super().__init__()
        self.was_told = threading.Event()

    def _drive(self, run_pk: int) -> None:
        self.was_told.set()


def tell(session: psycopg.Connection[object], payload: str, is_heard: Callable[[], bool]) -> None:
    """Again and again, for nothing is kept for one who does not listen yet."""
    for _ in range(500):
        session.execute("select pg_notify(%s, %s)", [waking.CHANNEL, payload])
        if is_heard():
            return
    raise AssertionError(f"nobody heard {payload}")


@pytest.mark.django_db
def test_nonsense_on_the_channel_does_not_make_an_instance_deaf(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "_PATIENCE_S", 0.01)
    pause = threading.Event()
    ears = Listener()
    ears.start()
    try:
        with lobby.open_session() as session:
            tell(session, "nonsense", lambda: pause.wait(0.01) or "begins again" in caplog.text)
            tell(session, "1", lambda: ears.was_told.wait(0.01))
    finally:
        ears.stop()
