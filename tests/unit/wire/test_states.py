"""Looking into encoded states without decoding them: restore sorts by it, so it must never be wrong."""

from __future__ import annotations

import pytest

from broker_engine.errors import DecodeError
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.status import STATUSES_OF, TERMINAL_PHASES, Phase, WorkflowStatus
from broker_engine.wire.codecs import TASK_STATE, WORKFLOW_STATE
from broker_engine.wire.states import is_live_workflow, peek_task


def a_workflow_state(status: WorkflowStatus) -> WorkflowState:
    return WorkflowState(
        status=status,
        workflow_id="w",
        incarnation="c/0/0",
        name="n",
        version=1,
        definition_hash="h",
        input=b"{}",
        created_at_ms=1,
        updated_at_ms=1,
    )


def a_task_state(phase: Phase, task_id: str = "t", workflow_id: str = "w") -> TaskState:
    return TaskState(
        phase=phase,
        status=STATUSES_OF[phase][0],
        task_id=task_id,
        workflow_id=workflow_id,
        workflow_name="n",
        run=0,
        reference="r",
        task_type="x",
        domain="default",
        seq=1,
        input=b"{}",
        first_scheduled_at_ms=1,
        scheduled_at_ms=1,
        updated_at_ms=1,
    )


@pytest.mark.parametrize("status", WorkflowStatus)
def test_a_workflow_s_record_says_whether_it_lives(status: WorkflowStatus) -> None:
    assert is_live_workflow(WORKFLOW_STATE.encode(a_workflow_state(status))) == (not status.is_terminal)


@pytest.mark.parametrize("phase", Phase)
def test_a_task_s_record_says_whose_it_is_and_whether_it_ended(phase: Phase) -> None:
    for task_id, workflow_id in (("t", "w"), ("t" * 36, "w" * 200), ("ü", "日本")):
        peek = peek_task(TASK_STATE.encode(a_task_state(phase, task_id, workflow_id)))

        assert peek == (phase in TERMINAL_PHASES, task_id, workflow_id)


def test_what_is_no_task_state_is_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        peek_task(b"\0\0\0\0\3")
