"""A waiting task goes to the queue of another domain: moved by an operator, or re-routed because its own has no worker
(D13). Either way it gets a new hand-out number, and the old hand-out is void.

Nothing that runs is moved: its worker has it.
"""

from __future__ import annotations

from broker_engine.decider import flow
from broker_engine.decider.context import Pollers
from broker_engine.decider.domains import LIVE_MS, NO_DOMAIN, name_problem
from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import MOVES, Cause
from broker_engine.model.commands import MoveTask, RerouteTask
from broker_engine.model.state import TaskState
from broker_engine.model.status import Phase, ReasonCode, WaitingFor

#: What a task waits for on a queue, or to get onto it.
_ON_QUEUE = frozenset({WaitingFor.WORKER, WaitingFor.TOPIC, WaitingFor.SLOT, WaitingFor.LOCK})


def move(draft: Draft, command: MoveTask, task: TaskState | str) -> str | None:
    """Do what an operator asks. The task stays where it was put: it is not re-routed from there.

    ``task``: what the command is about, or why it belongs to the past.
    """
    domain = draft.context.default_domain if command.domain.upper() == NO_DOMAIN else command.domain
    problem = name_problem(domain)
    if problem is not None:
        draft.answer(400, f"domain {problem}")
        return f"domain {problem}"
    refusal = f"{task}: only a waiting task can be moved" if isinstance(task, str) else _refusal(task)
    if refusal is not None or isinstance(task, str):
        draft.answer(409, str(refusal))
        return refusal
    draft.answer(200, domain)
    if task.domain == domain:
        return f"the task is in domain {domain} already"
    reason = command.reason or f"moved from domain {task.domain} to {domain}"
    flow.change_queue(draft, task, ReasonCode.MOVED, reason, domain=domain, domain_choices="")
    return None


def _refusal(task: TaskState) -> str | None:
    if task.waiting_for is WaitingFor.DEPENDENCIES:
        return f"the task has not begun, it {task.reason}: only a task on its way to a queue can be moved"
    if (task.phase, Cause.MOVED) in MOVES:
        return None
    by = f" on worker {task.worker_id}" if task.worker_id else ""
    return f"the task is {task.phase}{by}: only a waiting task can be moved; let it end, or terminate its workflow"


def reroute(draft: Draft, command: RerouteTask, task: TaskState | str) -> str | None:
    """Do what the presence of workers asks for, unless the task has gone on since."""
    if isinstance(task, str):
        return task
    if not may_be_rerouted(task):
        return f"the task is {task.phase}, it waits for no worker of a domain"
    if command.hand_out != task.hand_out:
        return f"hand-out {command.hand_out} is void, the current one is {task.hand_out}"
    if command.domain == task.domain or command.domain not in task.domain_choices.split(","):
        return f"domain {command.domain} is none that the task may go to from {task.domain}"
    flow.change_queue(draft, task, ReasonCode.REROUTED, command.reason, domain=command.domain)
    return None


def may_be_rerouted(task: TaskState) -> bool:
    """Whether it waits on the queue of one of several domains, and was never started."""
    return (
        "," in task.domain_choices
        and task.phase is Phase.QUEUED
        and task.waiting_for in _ON_QUEUE
        and task.started_at_ms is None
    )


def live_choice(choices: str, task_type: str, pollers: Pollers, now_ms: int) -> str | None:
    """The first domain of a list in which a worker of this task type lives; None when there is none.

    ``now_ms``: the log time up to which the signs of life were read.
    """
    for domain in choices.split(","):
        seen_ms = pollers.last_seen_ms(domain, task_type)
        if seen_ms is not None and seen_ms > now_ms - LIVE_MS:
            return domain
    return None
