"""What to report of a claim, from what happened to it. Nothing is sent here."""

import time
from typing import Any

from mesh.agent.spool import Report
from mesh.agent.works import AT_ONCE, StopReason, Work


def not_begun(work: Work, reason: StopReason) -> Report | None:
    """What to report of a claim that must not be begun any more; None: it is simply over."""
    if reason is StopReason.CANCELLED:
        return report_of(work, "cancelled", {})
    if reason is StopReason.SHUTDOWN:
        return report_of(work, "release", {})
    if work.is_hold:
        # A start may have been accepted and its answer lost; it was for nothing.
        body = {"kind": "worker_failure", "error": "never begun", "no_effect": True}
        return report_of(work, "fail", body)
    return None


def report_of(work: Work, outcome: str, body: dict[str, Any]) -> Report:
    """A report on a claim as it is sent."""
    if not work.is_hold:
        # Says something only of work whose effects must not be repeated.
        body.pop("no_effect", None)
    return Report(
        outcome=outcome,
        claim_id=work.claim_id,
        workload_id=work.workload_id,
        attempt_id=work.attempt_id,
        fencing_token=work.fencing_token,
        is_hold=work.is_hold,
        body=body,
    )


def judge(work: Work, frame: dict[str, Any] | None, reason: StopReason | None) -> Report | None:
    """What to report of work that ended as `frame` says (None: killed), stopped for `reason`.

    Of `hold` work the truth counts, whatever was asked meanwhile; other work that was told to
    stop is reported as stopped.
    """
    outcome = frame["outcome"] if frame is not None else "killed"
    if frame is not None and outcome != "cancelled" and frame.get("kind") != "stopped":
        finished = outcome == "complete" and reason is StopReason.SHUTDOWN
        if reason is None or work.is_hold or finished or reason in AT_ONCE:
            return _finished(work, frame)
    if reason is StopReason.CANCELLED:
        return report_of(work, "cancelled", {})
    if reason is StopReason.TIMEOUT:
        return report_of(work, "fail", {"kind": "timeout", "error": "the time limit passed"})
    if reason is StopReason.SHUTDOWN and not work.is_hold:
        body = {"kind": "worker_failure", "error": "the agent was stopped"}
        return report_of(work, "fail", body)
    if reason is None:
        body = {"kind": "exception", "error": "the handler gave up without being asked to"}
        return report_of(work, "fail", body)
    return None


def _finished(work: Work, frame: dict[str, Any]) -> Report:
    usage = {"cpu_ms": frame.get("cpu_ms", 0)}
    if work.started_at is not None:
        usage["duration_ms"] = round((time.monotonic() - work.started_at) * 1000)
    if frame["outcome"] == "complete":
        body = {
            "result_id": f"result_{work.attempt_id}",
            "output": frame["output"],
            "resource_usage": usage,
        }
        if frame.get("logs"):
            body["logs"] = frame["logs"]
        return report_of(work, "complete", body)
    body = {"kind": frame["kind"], "error": frame["error"]}
    if frame.get("details"):
        body["details"] = frame["details"]
    if frame.get("no_effect"):
        body["no_effect"] = True
    return report_of(work, "fail", body)
