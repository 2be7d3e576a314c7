"""The quick way through a shape has the outcome of the long one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.serializers import ValidationError

from mesh.api import bodies, plain
from mesh.api.examples import EXAMPLES
from mesh.api.fields import Body
from workflows.api import bodies as run_bodies

FULL: dict[str, Any] = {
    **EXAMPLES[bodies.Submit],
    "priority": 3,
    "retry_policy": {"max_attempts": 2, "jitter": 0.5, "backoff": "fixed"},
    "timeouts": {"queue_ms": None, "execution_ms": 5},
    "policy": {"required_labels": {"zone": "a"}},
    "not_before": "2030-01-31T12:00:00Z",
    "dependencies": [{"workload_id": "workload_1", "required_state": "ANY_END"}],
}
ODD = st.sampled_from([None, True, 1, 2**70, 1.5, "", "x" * 300, [], {}, [1], {"a": 1}, ["a"]])


def outcome(shape: type[Body], data: Any) -> Any:
    try:
        return shape.check(data)
    except ValidationError as error:
        return error.detail


def quick(shape: type[Body], data: Any) -> Any:
    try:
        return plain.check(shape, data)
    except ValidationError as error:
        return error.detail


# Has a rule of its own about which members go together.
PLAIN = [each for each in EXAMPLES if each is not run_bodies.Settle]


@pytest.mark.parametrize("shape", PLAIN, ids=lambda each: each.__name__)
def test_what_is_plainly_right_goes_the_quick_way(shape: type[Body]) -> None:
    checked = plain._check_of_shape(shape)(EXAMPLES[shape])
    assert checked == outcome(shape, EXAMPLES[shape])


@given(st.data())
def test_any_body_has_the_same_outcome_either_way(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(list(EXAMPLES)))
    sent = dict(FULL if shape is bodies.Submit else EXAMPLES[shape])
    for name in data.draw(st.sets(st.sampled_from([*shape.instance().fields, "more"]), max_size=2)):
        if data.draw(st.booleans()):
            sent[name] = data.draw(ODD)
        else:
            sent.pop(name, None)
    assert quick(shape, sent) == outcome(shape, sent)
