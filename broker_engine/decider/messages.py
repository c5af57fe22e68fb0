"""Messages to a workflow: kept in its record until a PULL_WORKFLOW_MESSAGES takes them, in their order."""

from __future__ import annotations

from typing import Any

import orjson

from broker_engine.decider.definitions import MAX_DEPTH, is_too_deep
from broker_engine.decider.draft import Draft
from broker_engine.decider.identity import message_id
from broker_engine.decider.moves import Cause
from broker_engine.decider.task_types.waits import batch_size, messages_output
from broker_engine.model.commands import PushMessage
from broker_engine.model.state import Message
from broker_engine.model.status import Phase, ReasonCode, WaitingFor, WorkflowStatus

#: What a workflow's record holds of messages that nobody has taken: their number, and their bytes together. The record
#: holds input, output and variables as well, and is written when any of it changes.
MAX_MESSAGES = 100
MAX_MESSAGES_BYTES = 64 * 1024


def push(draft: Draft, command: PushMessage) -> str | None:
    """Keep a message, or give it to the task that waits for one. The answer is the message's id."""
    workflow = draft.workflow
    if workflow.status.is_terminal:
        return _refuse(draft, 409, f"the workflow is {workflow.status}: only a live workflow takes messages")
    problem = _problem(command.payload)
    if problem is not None:
        return _refuse(draft, 400, problem)
    size = len(command.payload)
    if size > MAX_MESSAGES_BYTES:
        limit = f"the limit is {MAX_MESSAGES_BYTES}: store it elsewhere and send a reference"
        return _refuse(draft, 413, f"the message has {size} bytes, {limit}")
    kept = sum(len(message.payload) for message in workflow.messages)
    if len(workflow.messages) >= MAX_MESSAGES or kept + size > MAX_MESSAGES_BYTES:
        full = f"{len(workflow.messages)} messages of {kept} bytes wait to be taken"
        return _refuse(draft, 429, f"{full} (at most {MAX_MESSAGES} of {MAX_MESSAGES_BYTES}): try again later")
    own = command.command_id or message_id(workflow.workflow_id, workflow.run, draft.context.position, command.offset)
    message = Message(own, draft.now_ms, command.payload)
    draft.change_workflow(messages=(*workflow.messages, message))
    deliver(draft)
    draft.answer(200, own)
    return None


def deliver(draft: Draft) -> None:
    """Give what is there to the tasks that wait for it, the oldest first."""
    if not draft.workflow.messages or draft.workflow.status is WorkflowStatus.PAUSED:
        return
    for task in draft.execution.live_tasks():
        messages = draft.workflow.messages
        if not messages:
            return
        if task.waiting_for is not WaitingFor.MESSAGES or task.phase is not Phase.RUNNING:
            continue
        taken = messages[: batch_size(orjson.loads(task.input))]
        draft.change_workflow(messages=messages[len(taken) :])
        output = orjson.dumps(messages_output(task.workflow_id, taken))
        code = ReasonCode.MESSAGES_TAKEN
        changes: dict[str, Any] = {"output": output, "waiting_for": None}
        draft.ended.append(draft.move(task, Cause.COMPLETED, Phase.SUCCEEDED, code, **changes))


def _problem(payload: bytes) -> str | None:
    try:
        document = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        return f"the message is not valid JSON: {error}"
    if not isinstance(document, dict):
        return f"the message must be a JSON object, not {type(document).__name__}"
    if is_too_deep(document, payload):
        return f"the message is nested more than {MAX_DEPTH} levels deep"
    return None


def _refuse(draft: Draft, status: int, message: str) -> str:
    draft.answer(status, message)
    return message
