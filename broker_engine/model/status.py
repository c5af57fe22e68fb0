"""Phases and statuses of tasks, statuses of workflows, and the tables that relate them.

A *phase* is where a task is in its life; a *status* is Conductor's word for it. Each phase allows one or two
statuses (``STATUSES_OF``); the Conductor facts about a status (terminal, successful, retriable) are in ``FACTS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Phase(StrEnum):
    """Where a task is in its life. Waiting is a phase, never a busy wait."""

    CREATED = "CREATED"  # exists, start delay not over
    QUEUED = "QUEUED"  # on a schedule topic, or waiting to be put there
    STARTING = "STARTING"  # taken by a worker that prepares
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    TIMED_OUT = "TIMED_OUT"
    PAUSED = "PAUSED"
    RETRY_WAIT = "RETRY_WAIT"  # a new attempt whose back-off is not over
    CANCELING = "CANCELING"  # running, asked to stop
    SKIPPED = "SKIPPED"


class TaskStatus(StrEnum):
    """Conductor's nine task statuses."""

    SCHEDULED = "SCHEDULED"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_ERRORS = "COMPLETED_WITH_ERRORS"
    FAILED = "FAILED"
    FAILED_WITH_TERMINAL_ERROR = "FAILED_WITH_TERMINAL_ERROR"
    TIMED_OUT = "TIMED_OUT"
    CANCELED = "CANCELED"
    SKIPPED = "SKIPPED"


class StatusFacts(NamedTuple):
    """What Conductor says of a status (TaskModel.Status): ``is_successful`` means something only when terminal."""

    is_terminal: bool
    is_successful: bool
    is_retriable: bool


FACTS: Mapping[TaskStatus, StatusFacts] = {
    TaskStatus.SCHEDULED: StatusFacts(False, True, True),
    TaskStatus.IN_PROGRESS: StatusFacts(False, True, True),
    TaskStatus.COMPLETED: StatusFacts(True, True, True),
    TaskStatus.COMPLETED_WITH_ERRORS: StatusFacts(True, True, True),
    TaskStatus.FAILED: StatusFacts(True, False, True),
    TaskStatus.FAILED_WITH_TERMINAL_ERROR: StatusFacts(True, False, False),
    TaskStatus.TIMED_OUT: StatusFacts(True, False, True),
    TaskStatus.CANCELED: StatusFacts(True, False, False),
    TaskStatus.SKIPPED: StatusFacts(True, True, False),
}

STATUSES_OF: Mapping[Phase, tuple[TaskStatus, ...]] = {
    Phase.CREATED: (TaskStatus.SCHEDULED,),
    Phase.QUEUED: (TaskStatus.SCHEDULED,),
    Phase.RETRY_WAIT: (TaskStatus.SCHEDULED,),
    Phase.PAUSED: (TaskStatus.SCHEDULED,),
    Phase.STARTING: (TaskStatus.IN_PROGRESS,),
    Phase.RUNNING: (TaskStatus.IN_PROGRESS,),
    Phase.CANCELING: (TaskStatus.IN_PROGRESS,),
    Phase.SUCCEEDED: (TaskStatus.COMPLETED, TaskStatus.COMPLETED_WITH_ERRORS),
    Phase.FAILED: (TaskStatus.FAILED, TaskStatus.FAILED_WITH_TERMINAL_ERROR),
    Phase.CANCELED: (TaskStatus.CANCELED,),
    Phase.TIMED_OUT: (TaskStatus.TIMED_OUT,),
    Phase.SKIPPED: (TaskStatus.SKIPPED,),
}

TERMINAL_PHASES: frozenset[Phase] = frozenset(
    phase for phase, statuses in STATUSES_OF.items() if FACTS[statuses[0]].is_terminal
)


#: A worker runs it, or prepares to.
STARTED: frozenset[Phase] = frozenset({Phase.STARTING, Phase.RUNNING})
#: A worker has it.
IN_HAND: frozenset[Phase] = STARTED | {Phase.CANCELING}


class WorkflowStatus(StrEnum):
    """Conductor's six workflow statuses."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    TERMINATED = "TERMINATED"

    @property
    def is_terminal(self) -> bool:
        return self not in LIVE_WORKFLOW_STATUSES


LIVE_WORKFLOW_STATUSES: frozenset[WorkflowStatus] = frozenset({WorkflowStatus.RUNNING, WorkflowStatus.PAUSED})


class ReportStatus(StrEnum):
    """What a worker may say of an attempt it has ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    FAILED_WITH_TERMINAL_ERROR = "FAILED_WITH_TERMINAL_ERROR"
    CANCELED = "CANCELED"


class StepStatus(StrEnum):
    """How far a step of a task is."""

    STARTED = "STARTED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


#: The step that ends STARTING when it is told as completed; it is kept by no state.
SETUP_STEP = "(set-up)"


class WaitingFor(StrEnum):
    """What a task that does not run is waiting for."""

    WORKER = "worker"  # on its queue
    TOPIC = "topic"  # its queue's topic is being made
    DELAY = "delay"  # back-off, start delay or callback
    SLOT = "slot"  # a limit: concurrency, rate, tenant, global
    LOCK = "lock"  # the resource is worked on by another task
    RESUME = "resume"  # paused by somebody
    TASKS = "tasks"  # other tasks: those that a JOIN joins, the body of a loop
    TIME = "time"  # the moment that a WAIT names
    WORKFLOW = "workflow"  # its sub-workflow
    TURN = "turn"  # a loop that others are let before
    MESSAGES = "messages"  # sent to its workflow
    DEPENDENCIES = "dependencies"  # the tasks that it depends on
    UPDATE = "update"  # somebody ends it: HUMAN, WAIT without a moment


class ReasonCode(StrEnum):
    """Why a transition happened; the vocabulary of `reasonCode` in events and task states."""

    WORKFLOW_STARTED = "WORKFLOW_STARTED"
    WORKFLOW_RETRIED = "WORKFLOW_RETRIED"
    WORKFLOW_RERUN = "WORKFLOW_RERUN"
    WORKFLOW_RESTARTED = "WORKFLOW_RESTARTED"
    CHILD_RUNS_AGAIN = "CHILD_RUNS_AGAIN"
    SKIP_REQUESTED = "SKIP_REQUESTED"
    WORKFLOW_REMOVED = "WORKFLOW_REMOVED"
    VARIABLES_UPDATED = "VARIABLES_UPDATED"
    PREVIOUS_TASK_DONE = "PREVIOUS_TASK_DONE"
    HANDED_OUT = "HANDED_OUT"
    HANDED_OUT_AGAIN = "HANDED_OUT_AGAIN"
    TOPIC_READY = "TOPIC_READY"
    DELAY_OVER = "DELAY_OVER"
    DELAY_LOST = "DELAY_LOST"
    CALLBACK = "CALLBACK"
    CALLBACKS_RESET = "CALLBACKS_RESET"
    WORKER_STARTED = "WORKER_STARTED"
    LEASE_TAKEN_OVER = "LEASE_TAKEN_OVER"
    PREPARED = "PREPARED"
    WORKER_REPORTED = "WORKER_REPORTED"
    RETRYABLE_ERROR = "RETRYABLE_ERROR"
    TERMINAL_ERROR = "TERMINAL_ERROR"
    RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
    OPTIONAL_FAILED = "OPTIONAL_FAILED"
    INIT_INPUT = "INIT_INPUT"
    INIT_SECRET = "INIT_SECRET"  # noqa: S105 - a word, no secret
    INIT_SETUP = "INIT_SETUP"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    SCHEMA_VIOLATION = "SCHEMA_VIOLATION"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    POLL_TIMEOUT = "POLL_TIMEOUT"
    RESPONSE_TIMEOUT = "RESPONSE_TIMEOUT"
    WORKER_LOST = "WORKER_LOST"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    TOTAL_TIMEOUT = "TOTAL_TIMEOUT"
    WORKFLOW_TIMEOUT = "WORKFLOW_TIMEOUT"
    TIMEOUT_ALERT = "TIMEOUT_ALERT"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    PAUSE_REQUESTED = "PAUSE_REQUESTED"
    PAUSED = "PAUSED"
    RESUMED = "RESUMED"
    WORKFLOW_ENDED = "WORKFLOW_ENDED"
    ALL_TASKS_DONE = "ALL_TASKS_DONE"
    EVALUATED = "EVALUATED"
    JOINED = "JOINED"
    ROUND_OVER = "ROUND_OVER"
    ITERATED = "ITERATED"
    WAIT_OVER = "WAIT_OVER"
    MESSAGES_TAKEN = "MESSAGES_TAKEN"
    DEPENDENCIES_DONE = "DEPENDENCIES_DONE"
    SUB_WORKFLOW_STARTED = "SUB_WORKFLOW_STARTED"
    SUB_WORKFLOW_ENDED = "SUB_WORKFLOW_ENDED"
    FAILURE_WORKFLOW_REFUSED = "FAILURE_WORKFLOW_REFUSED"
    TERMINATED_BY_TASK = "TERMINATED_BY_TASK"
    QUARANTINED = "QUARANTINED"
    RELEASED = "RELEASED"
    MOVED = "MOVED"
    REROUTED = "REROUTED"
