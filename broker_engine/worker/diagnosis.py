"""Why a task is where it is, in one sentence, and what that sentence is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from broker_engine.decider.deadlines import TIMEOUT_CODES
from broker_engine.decider.limit_places import Standing, standing
from broker_engine.decider.transfers import may_be_rerouted
from broker_engine.errors import NotFound
from broker_engine.model.state import TaskState, WorkflowState, present
from broker_engine.model.status import IN_HAND, Phase, WaitingFor, WorkflowStatus
from broker_engine.model.stops import Stop, queue_name, stop_of_queue
from broker_engine.worker.limits import limit_rules
from broker_engine.worker.presence import LOST_MS
from broker_engine.worker.views import Heard, Views

#: The deadlines that end something; the others only look after a task.
_TIMEOUTS = frozenset(kind.value for kind in TIMEOUT_CODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that is known about why a task is where it is."""

    task: TaskState
    sentence: str
    #: When a worker of its queue was last heard of (epoch milliseconds); None: not within the last hour.
    last_poll_ms: int | None = None
    #: Other domains that it may go to, and of these the ones with a live worker.
    choices: tuple[str, ...] = ()
    live_choices: tuple[str, ...] = ()
    #: Of a task that waits for a limit.
    standing: Standing | None = None
    #: Why its workflow is kept still.
    quarantine: str | None = None


def diagnose(views: Views, name: str, reference: str | None, now_ms: int) -> Explanation:
    """Look everything up. ``name``: a task id, or with ``reference`` the id of its workflow.

    Raises:
        NotFound: there is no such task.
    """
    task = views.task(name) if reference is None else task_of(views, name, reference)
    if task.is_terminal:
        return Explanation(task=task, sentence=explain(task, None, now_ms))
    heard = views.presence()
    last_poll_ms = _last_poll_ms(heard, task.domain, task.task_type)
    choices = (
        tuple(d for d in task.domain_choices.split(",") if d and d != task.domain) if may_be_rerouted(task) else ()
    )
    live = tuple(domain for domain in choices if _lives(heard, domain, task.task_type, now_ms))
    place = None
    if task.waiting_for is WaitingFor.SLOT or task.waiting_for is WaitingFor.LOCK:
        place = standing(views.limits(), task.task_id, now_ms, limit_rules(views))
    workflow = views.workflow_state(task.workflow_id)
    quarantine = None if workflow is None else workflow.quarantine
    held_by = workflow if workflow is not None and workflow.status is WorkflowStatus.PAUSED else None
    stop = stop_of_queue(views.stops(), task.domain, task.task_type) if task.phase not in IN_HAND else None
    sentence = explain(
        task, last_poll_ms, now_ms, place=place, choices=choices, live_choices=live, held_by=held_by, stop=stop
    )
    return Explanation(
        task=task,
        sentence=f"its workflow is in quarantine: {quarantine}" if quarantine else sentence,
        last_poll_ms=last_poll_ms,
        choices=choices,
        live_choices=live,
        standing=place,
        quarantine=quarantine,
    )


def task_of(views: Views, workflow_id: str, reference: str) -> TaskState:
    """The latest attempt of a task of a workflow.

    Raises:
        NotFound: there is no such task (yet).
    """
    view = views.workflow(workflow_id)
    tasks = present(view.workflow, view.tasks)
    found = [task for task in tasks if task.reference == reference]
    if not found:
        there = ", ".join(dict.fromkeys(task.reference for task in tasks))
        raise NotFound(f"workflow {workflow_id} has no task {reference} (yet); there are {there}")
    return found[-1]


def _last_poll_ms(heard: Sequence[Heard], domain: str, task_type: str) -> int | None:
    queue = (domain, task_type)
    return max((h.at_ms for h in heard if (h.presence.domain, h.presence.task_types) == queue), default=None)


def _lives(heard: Sequence[Heard], domain: str, task_type: str, now_ms: int) -> bool:
    staying = [h for h in heard if not h.presence.is_leaving]
    last_ms = _last_poll_ms(staying, domain, task_type)
    return last_ms is not None and last_ms > now_ms - LOST_MS


# --- the sentence


def explain(
    task: TaskState,
    last_poll_ms: int | None,
    now_ms: int,
    *,
    place: Standing | None = None,
    choices: Sequence[str] = (),
    live_choices: Sequence[str] = (),
    held_by: WorkflowState | None = None,
    stop: Stop | None = None,
) -> str:
    """What a task does or waits for.

    Args:
        last_poll_ms: when a worker of the task's queue was last heard of, None if never (epoch milliseconds, as
            ``now_ms``).
        place: where it stands among those that wait for its limits.
        choices: other domains that it may go to.
        live_choices: those of them in which a worker lives.
        held_by: its workflow, if that is paused.
        stop: the pause of its queue.
    """
    if task.is_terminal:
        return f"{task.status}: {task.reason}" if task.reason else f"{task.status}"
    if task.is_in_engine:
        return _in_engine(task, now_ms) + _deadline(task, now_ms)
    if task.phase in IN_HAND:
        since_ms = task.started_at_ms if task.started_at_ms is not None else task.updated_at_ms
        does = "prepares" if task.phase is Phase.STARTING else "running"
        text = f"{does} on worker {task.worker_id} for {_seconds(now_ms - since_ms)}"
        return text + _deadline(task, now_ms) + _asked(task, now_ms)
    if task.phase is Phase.PAUSED:
        return _paused(task, held_by, stop, now_ms)
    match task.waiting_for:
        case WaitingFor.DELAY:
            text = f"{_delay(task)} in {_seconds((task.due_at_ms or now_ms) - now_ms)}"
        case WaitingFor.TOPIC:
            text = f"waits for the topic of its queue {task.domain}/{task.task_type} to be made"
        case WaitingFor.WORKER:
            text = _queued(task, last_poll_ms, now_ms) + _elsewhere(last_poll_ms, now_ms, choices, live_choices)
        case WaitingFor.SLOT:
            text = _in_line(task, place, now_ms)
        case WaitingFor.LOCK:
            text = _locked_out(task, place)
        case WaitingFor.DEPENDENCIES:
            done = f"{task.progress_done or 0} of the {task.progress_total} tasks that it depends on have ended"
            text = f"{task.reason}; {done}"
        case None:
            text = f"{task.phase}"
        case _:
            text = f"waits for {task.waiting_for}"
    return text + _deadline(task, now_ms) + (f"; {_queue_paused(stop)}" if stop is not None else "")


def _in_engine(task: TaskState, now_ms: int) -> str:
    """What a task of the engine's own waits for."""
    match task.waiting_for:
        case WaitingFor.TASKS if task.iteration and task.task_type == "DO_WHILE":
            rounds = f" of {task.progress_total}" if task.progress_total is not None else ""
            return f"in round {task.iteration}{rounds}"
        case WaitingFor.TASKS:
            left = (task.progress_total or 0) - (task.progress_done or 0)
            return f"waits for {left} of the {task.progress_total} tasks that it joins"
        case WaitingFor.TIME:
            return f"waits for its moment, in {_seconds((task.due_at_ms or now_ms) - now_ms)}"
        case WaitingFor.TURN:
            return f"in round {task.iteration} of {task.progress_total}, and lets others go first"
        case WaitingFor.MESSAGES:
            how = f"broker-engine workflow push-message {task.workflow_id} JSON"
            return f"waits for a message to its workflow; send one with `{how}`"
        case WaitingFor.WORKFLOW:
            return f"waits for its sub-workflow {task.sub_workflow_id}"
        case _:
            how = f"broker-engine task complete {task.workflow_id} {task.reference}"
            return f"waits for somebody to end it; do it with `{how}`"


def _asked(task: TaskState, now_ms: int) -> str:
    """What its worker was asked for."""
    if task.phase is Phase.CANCELING:
        asked_ms = task.cancel_requested_at_ms if task.cancel_requested_at_ms is not None else task.updated_at_ms
        return f", {task.cancel_reason} {_seconds(now_ms - asked_ms)} ago"
    return f", asked to pause ({task.reason})" if task.paused_by else ""


def _queue_paused(stop: Stop) -> str:
    because = f": {stop.reason}" if stop.reason else ""
    since = datetime.fromtimestamp(stop.since_ms / 1_000, UTC).isoformat(timespec="seconds")
    how = f"broker-engine queue resume {queue_name(stop.key)}"
    return f"its queue is paused by {stop.operator} since {since}{because}; resume with `{how}`"


def _paused(task: TaskState, held_by: WorkflowState | None, stop: Stop | None, now_ms: int) -> str:
    """What holds it: each of the three has to be resumed."""
    also = f"; {_queue_paused(stop)}" if stop is not None else ""
    if task.paused_by is None and held_by is None:
        return _queue_paused(stop) if stop is not None else "its queue was resumed: it goes on within a moment"
    return _paused_itself(task, held_by, now_ms) + also


def _paused_itself(task: TaskState, held_by: WorkflowState | None, now_ms: int) -> str:
    since = _seconds(now_ms - (task.paused_at_ms or now_ms))
    if held_by is not None and task.paused_by is None:
        how = f"broker-engine workflow resume {held_by.workflow_id}"
        return f"held for {since}: its workflow is {held_by.reason or 'paused'}; resume with `{how}`"
    how = f"broker-engine task resume {task.workflow_id} {task.reference}"
    return f"{task.reason or 'paused'}, for {since}; resume with `{how}`"


def _deadline(task: TaskState, now_ms: int) -> str:
    if task.next_deadline not in _TIMEOUTS or task.next_deadline_at_ms is None:
        return ""
    return f", {task.next_deadline} time-out in {_seconds(task.next_deadline_at_ms - now_ms)}"


def _delay(task: TaskState) -> str:
    names = {Phase.RETRY_WAIT: "retry", Phase.CREATED: "first hand-out", Phase.QUEUED: "callback"}
    return names.get(task.phase, "hand-out")


def _is_silent(last_poll_ms: int | None, now_ms: int) -> bool:
    return last_poll_ms is None or now_ms - last_poll_ms > LOST_MS


def _queued(task: TaskState, last_poll_ms: int | None, now_ms: int) -> str:
    """On its queue: the workers are absent, or busy."""
    queue = f"task type {task.task_type} in domain {task.domain}"
    if last_poll_ms is None:
        return f"no worker has polled {queue} yet"
    if _is_silent(last_poll_ms, now_ms):
        return f"no worker has polled {queue} for {_seconds(now_ms - last_poll_ms)}"
    since_ms = task.handed_out_at_ms if task.handed_out_at_ms is not None else task.updated_at_ms
    return f"waits for a free worker of {queue} for {_seconds(now_ms - since_ms)}"


def _elsewhere(last_poll_ms: int | None, now_ms: int, choices: Sequence[str], live_choices: Sequence[str]) -> str:
    if not choices or not _is_silent(last_poll_ms, now_ms):
        return ""
    if live_choices:
        return f"; it will be re-routed to domain {live_choices[0]}, where one lives"
    return f"; nor is there one in {' or '.join(choices)}, where it may go"


def _in_line(task: TaskState, place: Standing | None, now_ms: int) -> str:
    if place is None:
        return f"waits until the limits of task type {task.task_type} let it in"
    limit = place.limit
    if limit is None:
        return f"{_ordinal(place.position)} in line of task type {task.task_type}; its limits have room"
    if limit.kind is WaitingFor.LOCK:
        return _locked_out(task, place)
    what, _, whose = limit.key.partition(" ")
    about = {"type": f"task type {whose}", "rate": f"task type {whose}", "tenant": f"tenant {whose}"}.get(
        what, limit.key
    )
    if limit.window_ms:
        opens = "" if place.opens_at_ms is None else f", the next in {_seconds(place.opens_at_ms - now_ms)}"
        starts = "1 start" if limit.capacity == 1 else f"{limit.capacity} starts"
        return f"{_ordinal(place.position)} in line for {starts} per {limit.window_ms // 1_000} s of {about}{opens}"
    slots = "1 slot" if limit.capacity == 1 else f"{limit.capacity} slots"
    return f"{_ordinal(place.position)} in line for {slots} of {about}"


def _locked_out(task: TaskState, place: Standing | None) -> str:
    if place is None or not place.holders or place.limit is None or place.limit.kind is not WaitingFor.LOCK:
        return f"waits for {task.resource}, which another task works on"
    holder = place.holders[0]
    nth = "" if place.position == 1 else f" ({_ordinal(place.position)} in line)"
    held = f"held by task {holder.task_id} ({holder.reference} of workflow {holder.workflow_id})"
    return f"waits for lock {task.resource}{nth} {held}"


def _ordinal(number: int) -> str:
    if 10 < number % 100 < 20:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def _seconds(ms: int) -> str:
    seconds = max(ms, 0) / 1_000
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
