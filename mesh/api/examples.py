"""A body to begin with for each route that takes one, as the readable document shows it."""

from typing import Any, Final

from . import bodies
from .fields import Body

_FENCE: Final = {"fencing_token": 1}
_NOW: Final = "2030-01-31T12:00:00Z"

_SUBMIT: Final[dict[str, Any]] = {
    "application": "documents",
    "environment": "production",
    "trigger": "by hand",
    "definition_id": "documents.count",
    "definition_revision": "1",
    "input": {"folder": "inbox", "file": "letter.txt"},
    "capability_snapshot": ["documents.count"],
    "idempotency_key": "letter-1",
}

EXAMPLES: Final[dict[type[Body], dict[str, Any]]] = {
    bodies.Submit: _SUBMIT,
    bodies.SubmitMany: {"workloads": [_SUBMIT]},
    bodies.Place: {},
    bodies.CreatePause: {
        "application": "documents",
        "definition_id": "documents.count",
        "reason": "release 9 loses pages",
    },
    bodies.Retry: {"extra_attempts": 1, "reason": "the file is there now"},
    bodies.Reasoned: {"reason": "maintenance"},
    bodies.Resume: {"reason": "the hosts are really gone"},
    bodies.Register: {
        "contract_version": 1,
        "tenant": "acme",
        "application": "documents",
        "name": "edge-1",
        "runtime": "process",
        "version": "1.0",
        "capabilities": ["documents.count"],
        "workload_kinds": ["documents.count"],
        "capacity": {"concurrency": 1},
        "resource_profile": {},
        "labels": {"zone": "a"},
        "registered_by": "service:registrar",
        "grant": "eyJ…",
    },
    bodies.Heartbeat: {
        "version": "1.0",
        "capability_version": 1,
        "health": "HEALTHY",
        "timestamp": _NOW,
        "running_claims": [],
    },
    bodies.TakeClaims: {"max": 1},
    bodies.Reconcile: {
        "worker_version": "1.0",
        "capability_version": 1,
        "known_claims": [],
        "running_attempts": [],
        "completed_attempts": [],
        "failed_attempts": [],
        "timestamp": _NOW,
    },
    bodies.Drain: {"reason": "maintenance", "deadline_ms": 600_000},
    bodies.Fenced: _FENCE,
    bodies.Renew: _FENCE,
    bodies.SaveCheckpoint: {**_FENCE, "state": {"line": 1000}},
    bodies.Complete: {**_FENCE, "result_id": "result-1", "output": {"lines": 42}},
    bodies.Fail: {**_FENCE, "kind": "file_missing", "error": "letter.txt: no such file"},
    bodies.Revoke: {
        "kind": "subject",
        "id": "service:registrar",
        "reason": "its key got out",
    },
    bodies.Delegate: {
        "subject": "service:edge-registrar",
        "capabilities": ["worker:register", "worker:capability:documents.count"],
        "constraints": {"worker_names": ["edge-*"]},
        "expires_in_ms": 3_600_000,
    },
    bodies.Results: {
        "results": [
            {
                "claim_id": "claim_1",
                **_FENCE,
                "outcome": "complete",
                "result_id": "result-1",
                "output": {"lines": 42},
            },
            {
                "claim_id": "claim_2",
                **_FENCE,
                "outcome": "fail",
                "kind": "file_missing",
                "error": "letter.txt: no such file",
            },
        ]
    },
    bodies.Starts: {"starts": [{"claim_id": "claim_1", **_FENCE}]},
    bodies.Validate: {**_FENCE, "worker_id": "worker_1", "workload_id": "workload_1"},
    bodies.Resolve: {
        "resolution": "succeeded",
        "output": {"lines": 42},
        "reason": "the letter was sent; I looked",
    },
    bodies.Reclaim: {"reason": "the machine burned down"},
    bodies.CreatePool: {
        "pool_id": "gpu",
        "application": "documents",
        "name": "Machines with a GPU",
        "capabilities": ["documents.count"],
        "required_labels": {"zone": "a"},
        "worker_ids": [],
        "max_concurrency": 10,
    },
    bodies.ChangePool: {"max_concurrency": 20},
    bodies.Issue: {
        "application": "documents",
        "subject": "service:registrar",
        "capabilities": ["worker:register", "worker:capability:documents.count"],
        "expires_in_ms": 86_400_000,
    },
}
