"""Children: restarted later each time, logged to bounded files, ended with all they started."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from config import processes
from config.processes import Child, Family, RotatingLog, command
from config.supervisor import StartError, make_metrics_folder


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path, tmp_path / "children.json", while_waiting=lambda: None)
    yield made
    for child in list(made.children):
        made.stop(child)


def add(family: Family, name: str, script: str, **options: float) -> Child:
    launch = command([sys.executable, "-c", script], cwd=Path.cwd(), env={})
    return family.add(name, launch, **options)


def read_until(family: Family, child: Child, word: str) -> str:
    deadline = time.monotonic() + 20
    while word not in child.log.path.read_text():
        assert time.monotonic() < deadline, child.log.path.read_text()
        family.pump(0.05)
    return child.log.path.read_text()


def test_a_log_never_takes_more_than_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 1000)
    log = RotatingLog(tmp_path / "a.log")
    for number in range(100):
        log.write(b"%090d\n" % number)
    log.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"a.log", "a.log.1"}
    assert max(sizes.values()) <= 1000
    assert log.last_line().endswith("99")


def test_a_log_goes_on_after_somebody_removed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 10)
    log = RotatingLog(tmp_path / "a.log")
    log.write(b"before\n")
    log.path.unlink()
    log.write(b"after it\n")
    log.close()
    assert log.path.read_text() == "after it\n"


def test_what_a_child_says_stands_in_its_log(family: Family) -> None:
    child = add(family, "talker", "import sys; print('out'); print('err', file=sys.stderr)")
    assert family.wait(child, 20)
    assert sorted(child.log.path.read_text().split()) == ["err", "out"]


def test_a_child_that_keeps_dying_is_started_later_each_time(family: Family) -> None:
    child = add(family, "mayfly", "")
    delays = [child.next_delay() for _ in range(9)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    child.started_at -= processes.STEADY_S + 1
    assert child.next_delay() == 0.5


def test_a_child_that_does_not_stop_is_killed_with_all_it_started(family: Family) -> None:
    script = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('grandchild', subprocess.Popen(['/bin/sleep', '600']).pid, flush=True);"
        "time.sleep(600)"
    )
    child = add(family, "stubborn", script, patience_s=0.2)
    grandchild = psutil.Process(int(read_until(family, child, "\n").split()[1]))
    family.stop(child)
    _, alive = psutil.wait_procs([grandchild], timeout=10)
    assert alive == []
    assert family.children == []


def test_what_a_killed_run_left_is_cleared(family: Family, tmp_path: Path) -> None:
    child = add(family, "orphan", "import time; time.sleep(600)")
    assert child.process is not None
    later = Family(tmp_path, family.record, while_waiting=lambda: None)
    later.clear_leftovers()
    assert not psutil.pid_exists(child.process.pid)
    assert not family.record.exists()


def test_a_reused_process_id_is_left_alone(family: Family, tmp_path: Path) -> None:
    child = add(family, "stranger", "import time; time.sleep(600)")
    record = family.record.read_text()
    created = psutil.Process(child.process.pid if child.process else 0).create_time()
    family.record.write_text(record.replace(str(created), str(created - 100)))
    Family(tmp_path, family.record, while_waiting=lambda: None).clear_leftovers()
    assert child.is_running


# --- Where web processes count -------------------------------------------------------------------


def test_the_web_counts_in_memory_and_finds_what_a_killed_run_left(tmp_path: Path) -> None:
    data, memory = tmp_path / "data", tmp_path / "memory"
    memory.mkdir()
    folder = make_metrics_folder(data, memory)
    (folder / "counter_1.db").write_bytes(b"left")
    assert folder.parent == memory
    assert make_metrics_folder(data, memory) == folder
    assert list(folder.iterdir()) == []
    assert make_metrics_folder(tmp_path / "other", memory) != folder


def test_a_link_in_memory_is_not_followed(tmp_path: Path) -> None:
    data, memory, victim = tmp_path / "data", tmp_path / "memory", tmp_path / "victim"
    for folder in (data, memory, victim):
        folder.mkdir()
    (victim / "precious.db").touch()
    made = make_metrics_folder(data, memory)
    made.rmdir()
    made.symlink_to(victim)
    assert make_metrics_folder(data, memory) == data / "metrics"
    assert (victim / "precious.db").exists()


def test_without_such_memory_the_web_counts_in_the_data_folder(tmp_path: Path) -> None:
    assert make_metrics_folder(tmp_path, tmp_path / "none") == tmp_path / "metrics"
    with pytest.raises(StartError, match="--data-dir"):
        make_metrics_folder(tmp_path / "none", tmp_path / "none")
