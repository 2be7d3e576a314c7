"""Commands: placeholders, options from the input, environment, exits, what is left behind."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.agent import commands
from mesh.agent.commands import Stop, Template, TemplateError
from mesh.agent.handlers import WorkFailure
from tests.agent.conftest import eventually, is_running


def fill(template: str, value: Any) -> list[str]:
    return Template.parse(f"d={template}").fill(value)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def go(
        *arguments: str, value: Any = None, limit: int = 10_000, stop: Stop | None = None
    ) -> dict[str, Any]:
        control, ours = os.pipe()

        def on_started(group: int) -> None:
            if stop is not None:
                eventually((tmp_path / "pid").exists, "the command is under way")
                os.write(ours, b"x")

        try:
            return commands.run(
                list(arguments),
                value=value,
                workdir=str(tmp_path),
                output_limit=limit,
                control=control,
                on_started=on_started,
                stop_asked=lambda: stop if os.read(control, 1) else None,
            )
        finally:
            os.close(control)
            os.close(ours)

    return go


def test_a_placeholder_fills_one_argument_whatever_it_holds() -> None:
    assert fill("wc {input.a.b} x", {"a": {"b": "two words; $(rm) *"}}) == [
        "wc",
        "two words; $(rm) *",
        "x",
    ]


@pytest.mark.parametrize(("value", "text"), [(5, "5"), (True, "true"), (1.5, "1.5"), ("", "")])
def test_scalars_are_written_as_json_writes_them(value: Any, text: str) -> None:
    assert fill("p {input.v}", {"v": value}) == ["p", text]


@pytest.mark.parametrize("template", ["p {input.v}", "p --size={input.v}", "p {input.v} --"])
def test_a_value_that_begins_with_a_dash_is_refused(template: str) -> None:
    with pytest.raises(WorkFailure) as refused:
        fill(template, {"v": "-rf"})
    assert (refused.value.kind, refused.value.no_effect) == ("input_invalid", True)


def test_a_value_that_begins_with_a_dash_may_stand_after_a_double_dash() -> None:
    assert fill("rm -- {input.v}", {"v": "-rf"}) == ["rm", "--", "-rf"]


def test_a_double_dash_from_the_input_does_not_end_the_options() -> None:
    with pytest.raises(WorkFailure):
        fill("p {input.a} {input.b}", {"a": "--", "b": "-rf"})


@pytest.mark.parametrize("value", [{}, {"v": None}, {"v": {}}, {"v": ["x"]}, {"v": "a\0b"}, "v"])
def test_what_is_no_scalar_is_refused(value: Any) -> None:
    with pytest.raises(WorkFailure, match=r"input\.v"):
        fill("p {input.v}", value)


@pytest.mark.parametrize(
    "text", ["no separator", "=x", "d=", "d='open", "d={input.p} x", "d=p {input}", "d=p {input.}"]
)
def test_a_template_that_cannot_be_read_is_refused_at_start(text: str) -> None:
    with pytest.raises(TemplateError):
        Template.parse(text)


@pytest.mark.parametrize(
    ("data", "output"),
    [
        (b'{"a": [1]}\n', {"a": [1]}),
        (b"plain\n", {"stdout": "plain\n"}),
        (b"NaN", {"stdout": "NaN"}),
        (b"1" * 30, {"stdout": "1" * 30}),
        (b"\xff\0", {"stdout": "��"}),
        (b"[" * 100_000, {"stdout": "[" * 100_000}),
    ],
)
def test_output_is_json_if_it_is_json_and_text_otherwise(data: bytes, output: Any) -> None:
    assert commands.parse_output(data) == output


def test_a_command_reads_its_input_and_its_errors_become_logs(
    run: Callable[..., dict[str, Any]],
) -> None:
    done = run("sh", "-c", "cat; echo note >&2", value={"n": 1})
    assert done == {"output": {"n": 1}, "logs": "note\n"}


def test_a_command_sees_a_clean_environment_and_no_descriptors(
    run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FENCEPOST_GRANT", "secret")
    monkeypatch.setenv("TZ", "UTC")
    with open(os.devnull) as extra:
        os.set_inheritable(extra.fileno(), True)
        lines = run("sh", "-c", "env; ls /proc/$$/fd")["output"]["stdout"].split()
    names = {line.partition("=")[0] for line in lines if "=" in line}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LANG", "TZ", "HOME"}
    assert f"HOME={tmp_path}" in lines
    assert {line for line in lines if line.isdigit()} == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("exit 75", "transient_connection"),
        ("exit 9", "exit_9"),
        ("kill -SEGV $$", "signal_11"),
    ],
)
def test_the_way_a_command_ends_names_the_failure(
    run: Callable[..., dict[str, Any]], script: str, kind: str
) -> None:
    with pytest.raises(WorkFailure) as failed:
        run("sh", "-c", f"echo why >&2; {script}")
    assert (failed.value.kind, failed.value.error) == (kind, "why")


def test_a_program_that_is_not_there_had_no_effect(run: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(WorkFailure) as failed:
        run("/no/such/program")
    assert (failed.value.kind, failed.value.no_effect) == ("command_unavailable", True)


def test_endless_output_is_cut_off(run: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(WorkFailure) as failed:
        run("yes", limit=100_000)
    assert failed.value.kind == "output_too_large"


def test_what_a_command_leaves_running_ends_with_it(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    output = run("sh", "-c", "sleep 600 & echo $!")["output"]
    eventually(lambda: not is_running(output), "the leftover ended")


def test_a_command_that_ignores_term_gets_kill_with_its_whole_group(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > tmp; mv tmp pid; sleep 600' & wait"
    began = time.monotonic()
    with pytest.raises(WorkFailure) as failed:
        run("sh", "-c", script, stop=Stop(grace=0.5))
    assert failed.value.kind == "stopped"
    assert time.monotonic() - began >= 0.5
    assert not is_running(int((tmp_path / "pid").read_text()))
