"""A body to begin with for each route of runs that takes one."""

from typing import Any, Final

from mesh.api.fields import Body

from . import bodies

_AUTHORITY: Final[dict[str, Any]] = {
    "target_artifact_id": "coordinator:1.0",
    "instance_id": "coordinator-1",
    "generation": 1,
    "fencing_token": "a-long-random-secret",
}
_NEXT: Final = {**_AUTHORITY, "instance_id": "coordinator-2", "generation": 2}
_SHOWN: Final = {name: each for name, each in _AUTHORITY.items() if name != "fencing_token"}
_SHOWN_NEXT: Final = {name: each for name, each in _NEXT.items() if name != "fencing_token"}

EXAMPLES: Final[dict[type[Body], dict[str, Any]]] = {
    bodies.StoreDefinition: {
        "application": "documents",
        "definition_id": "documents.review",
        "version": 1,
        "steps": [
            {
                "step": "count",
                "definition_id": "documents.count",
                "capabilities": ["documents.count"],
                "effect": "read_only",
                "input": {"folder": "inbox", "file": {"$from": "run", "pointer": "/file"}},
            },
        ],
    },
    bodies.StartRun: {
        "application": "documents",
        "run_id": "letter-1",
        "definition_id": "documents.review",
        "version": 1,
        "input": {"file": "letter.txt"},
    },
    bodies.UnderAuthority: {"authority": _AUTHORITY},
    bodies.Adopt: {"reason": "its coordinator is gone for good"},
    bodies.Steer: {"reason": "look first"},
    bodies.CancelRun: {"reason": "wrong document"},
    bodies.Admit: {"authority": _AUTHORITY, "step": "count", "attempt": 1},
    bodies.Settle: {"authority": _AUTHORITY, "outcome": {"kind": "succeeded"}},
    bodies.FailRun: {
        "authority": _AUTHORITY,
        "code": "store_is_full",
        "message": "There is no room for the results.",
        "step": "count",
    },
    bodies.HandOver: {"mode": "recovery", "expected": _SHOWN, "replacement": _NEXT},
    bodies.Attest: {
        "transition": {"mode": "recovery", "expected": _SHOWN, "replacement": _SHOWN_NEXT},
        "statement": "I switched the machine off and saw it go dark.",
    },
    bodies.Confirm: {"statement": "I saw it too."},
    bodies.RegisterCoordinator: {
        "instance_id": "coordinator-1",
        "artifact": "coordinator:1.0",
        "lease_ms": 30_000,
    },
    bodies.BeatCoordinator: {},
    bodies.Nothing: {},
}
