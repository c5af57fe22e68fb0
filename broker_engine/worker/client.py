"""The client: register definitions, start workflows, look at them, wait for them, end them. Straight on Kafka."""

from __future__ import annotations

import getpass
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Any, Self, cast

import orjson

from broker_engine.decider.definition_tree import parse_workflow_def, single_task_workflow
from broker_engine.decider.definitions import parse_task_def
from broker_engine.decider.domains import domains_problem, name_problem
from broker_engine.decider.identity import workflow_id_for
from broker_engine.errors import BadRequest, Conflict, NoAnswer, NotFound, PayloadTooLarge, Violation
from broker_engine.log.namespaces import open_existing
from broker_engine.log.ports import Log
from broker_engine.model.caps import Cap, cap_key
from broker_engine.model.commands import (
    AllowStarts,
    AnyCommand,
    CancelTask,
    ClearCap,
    DeleteTaskDef,
    DeleteWorkflowDef,
    ExtendLease,
    IdempotencyStrategy,
    MoveTask,
    PauseTask,
    PauseWorkflow,
    PushMessage,
    PutTaskDef,
    PutWorkflowDef,
    ReleaseWorkflow,
    ResetCallbacks,
    ResumeTask,
    ResumeWorkflow,
    SetCap,
    StartWorkflow,
    StopStarts,
    TaskReported,
    TaskRequest,
    TerminateWorkflow,
)
from broker_engine.model.limits import MAX_PAYLOAD_BYTES
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.status import ReportStatus
from broker_engine.model.stops import Stop, queue_key, stop_key
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.signing import Signer
from broker_engine.worker.diagnosis import Explanation, diagnose, task_of
from broker_engine.worker.limits import LimitInUse, LimitsView, caps
from broker_engine.worker.operations import WorkflowOperations
from broker_engine.worker.queue_views import QueueViews
from broker_engine.worker.replies import Answered, Courier, raise_for
from broker_engine.worker.schedules import Schedules
from broker_engine.worker.views import Views, WorkflowView

#: How long a command may wait in the log before it is refused instead of carried out.
COMMAND_LIFETIME_MS = 60_000
DEFAULT_TIMEOUT = 15.0
_MOVES_AT_A_TIME = 500
JsonObject = Mapping[str, Any]


class Client(WorkflowOperations):
    """A connection to one namespace.

    Every call that changes something waits for the decider's answer; call again after ``NoAnswer`` with the same
    workflow id (or idempotency key) and nothing happens twice.

    Args:
        log: the cluster.
        namespace: the engine's namespace, which must exist.
        key: the namespace key, when it has one.
        operator: who acts, as told in events; the user's name by default.
    """

    def __init__(
        self,
        log: Log,
        namespace: Namespace | None = None,
        *,
        key: str | None = None,
        operator: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._namespace = namespace or Namespace()
        signer = Signer(key)
        record = open_existing(log, self._namespace, signer)
        self.partitions = record.partitions
        self.operator = operator or f"user:{getpass.getuser()}"
        self._timeout = timeout
        self._courier = Courier(log, self._namespace, record.partitions, signer, f"client-{uuid.uuid4()}")
        self._views = Views(log, self._namespace, record.partitions)
        #: What waits where, and who serves it.
        self.queues = QueueViews(log, self._namespace, self._views)
        #: What starts workflows by cron.
        self.schedules = Schedules(self.ask, self._views)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._courier.close()

    # --- definitions

    def register_task(self, definition: JsonObject, *, update: bool = False) -> list[str]:
        """Register (or, with ``update``, change) a task definition; returns warnings.

        Raises:
            BadRequest: the definition is not valid; every violation is listed.
            NotFound: ``update`` of one that does not exist.
        """
        name = str(parse_task_def(definition).unwrap().name)
        command = PutTaskDef(key=name, document=orjson.dumps(definition), is_update=update, **self._common())
        return _warnings(self._courier.ask(command, self._timeout))

    def delete_task(self, name: str) -> None:
        _check(self._courier.ask(DeleteTaskDef(key=name, **self._common()), self._timeout))

    def task_definition(self, name: str) -> dict[str, Any]:
        """A registered task definition.

        Raises:
            NotFound: there is none.
        """
        found = self.task_definitions().get(name)
        if found is None:
            raise NotFound(f"there is no task definition {name}")
        return found

    def task_definitions(self) -> dict[str, dict[str, Any]]:
        """All task definitions by name."""
        found = self._views.definitions(Topic.TASK_DEFS)
        return {key: _shown(definition.document) for key, definition in found.items()}

    def register_workflow(self, definition: JsonObject, *, overwrite: bool = False) -> list[str]:
        """Register a workflow definition version; returns warnings.

        Raises:
            BadRequest: the definition is not valid; every violation is listed.
            Conflict: this version exists and ``overwrite`` is not set.
        """
        name = parse_workflow_def(definition).unwrap().name
        command = PutWorkflowDef(key=name, document=orjson.dumps(definition), overwrite=overwrite, **self._common())
        return _warnings(self._courier.ask(command, self._timeout))

    def delete_workflow_definition(self, name: str, version: int) -> None:
        _check(self._courier.ask(DeleteWorkflowDef(key=name, version=version, **self._common()), self._timeout))

    def workflow_definitions(self) -> dict[str, dict[str, Any]]:
        """All workflow definitions by ``name:version``."""
        found = self._views.definitions(Topic.WORKFLOW_DEFS)
        return {key: _shown(definition.document) for key, definition in found.items()}

    # --- stops

    def stop_starts(self, *, workflow: str | None = None, tenant: str | None = None, reason: str | None = None) -> Stop:
        """Refuse new workflows of a definition, of a tenant, or (neither given) altogether. What runs goes on."""
        _one_of(workflow, tenant)
        key = stop_key(workflow=workflow, tenant=tenant)
        _check(self._courier.ask(StopStarts(key=key, reason=reason, **self._common()), self._timeout))
        return self.stops()[key]

    def allow_starts(self, *, workflow: str | None = None, tenant: str | None = None) -> None:
        """End a stop.

        Raises:
            NotFound: there is no such stop.
        """
        _one_of(workflow, tenant)
        key = stop_key(workflow=workflow, tenant=tenant)
        _check(self._courier.ask(AllowStarts(key=key, **self._common()), self._timeout))

    def pause_queue(self, task_type: str, domain: str | None = None, reason: str | None = None) -> Stop:
        """Hold what waits for a task type, in one domain or (none given) in all. What runs goes on.

        Raises:
            BadRequest: the name of the domain, or an empty task type.
        """
        key = _queue(task_type, domain)
        _check(self._courier.ask(StopStarts(key=key, reason=reason, **self._common()), self._timeout))
        return self.stops()[key]

    def resume_queue(self, task_type: str, domain: str | None = None) -> None:
        """Hand out again what a pause of the queue holds, the oldest first. Name it as it was paused.

        Raises:
            NotFound: it is not paused.
        """
        _check(self._courier.ask(AllowStarts(key=_queue(task_type, domain), **self._common()), self._timeout))

    def stops(self) -> dict[str, Stop]:
        """The stops in force, of starts and of queues, by key."""
        return self._views.stops()

    # --- caps

    def set_cap(self, limit: int, *, tenant: str | None = None, domain: str | None = None) -> Cap:
        """Let at most so many tasks be in progress: of a tenant, in a domain, or (neither given) altogether.

        Tenant ``*`` means every tenant without a cap of its own, each for itself. What was handed out before the first
        cap is not counted.
        """
        key = _capped(tenant, domain)
        _check(
            self._courier.ask(SetCap(key=key, document=orjson.dumps({"limit": limit}), **self._common()), self._timeout)
        )
        return self.caps()[key]

    def clear_cap(self, *, tenant: str | None = None, domain: str | None = None) -> None:
        """Remove a cap.

        Raises:
            NotFound: there is no such cap.
        """
        _check(self._courier.ask(ClearCap(key=_capped(tenant, domain), **self._common()), self._timeout))

    def caps(self) -> dict[str, Cap]:
        """The caps in force, by key."""
        return caps(self._views)

    def limits_in_use(self) -> Sequence[LimitInUse]:
        """Every limit (of caps, task types, rates and locks) that counts something now or is waited for."""
        return LimitsView(self._views).in_use(time.time_ns() // 1_000_000)

    # --- workflows

    def start(
        self,
        name: str,
        input: JsonObject | None = None,  # the field's name in Conductor
        *,
        version: int | None = None,
        workflow_id: str | None = None,
        idempotency_key: str | None = None,
        strategy: IdempotencyStrategy = IdempotencyStrategy.FAIL,
        correlation_id: str | None = None,
        priority: int = 0,
        source: str | None = None,
        tenant: str | None = None,
        deadline_at: datetime | None = None,
        task_to_domain: Mapping[str, str] | None = None,
    ) -> str:
        """Start a workflow by its definition's name and return its id.

        Raises:
            NotFound: no such definition.
            Conflict: the id or key is taken (as ``strategy`` says).
            PayloadTooLarge: the input is over the limit.
        """
        future = self.start_async(
            name,
            input,
            version=version,
            workflow_id=workflow_id,
            idempotency_key=idempotency_key,
            strategy=strategy,
            correlation_id=correlation_id,
            priority=priority,
            source=source,
            tenant=tenant,
            deadline_at=deadline_at,
            task_to_domain=task_to_domain,
        )
        return _check(self._wait(future)).message

    def start_async(
        self,
        name: str,
        input: JsonObject | None = None,  # as for start
        *,
        version: int | None = None,
        workflow_id: str | None = None,
        idempotency_key: str | None = None,
        strategy: IdempotencyStrategy = IdempotencyStrategy.FAIL,
        correlation_id: str | None = None,
        priority: int = 0,
        source: str | None = None,
        tenant: str | None = None,
        deadline_at: datetime | None = None,
        task_to_domain: Mapping[str, str] | None = None,
        definition: JsonObject | None = None,
        wants_answer: bool = True,
    ) -> Future[Answered]:
        """Send a start without waiting; the future gets the answer (its message is the workflow id).

        At ``deadline_at`` (with its time zone) the workflow times out; nothing of it is scheduled after that moment.
        ``task_to_domain`` lists domains for a task type or ``*``: ``{"*": "eu, NO_DOMAIN"}`` is the first of them that
        has a worker, else the last.
        Without ``wants_answer`` the decider sends none, and the future is done when the start is in the log.
        """
        if workflow_id is not None and idempotency_key is not None:
            raise BadRequest("workflow_id and idempotency_key exclude each other: the key already gives the id")
        payload = orjson.dumps(dict(input or {}))
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge(
                f"the input has {len(payload)} bytes, the limit is {MAX_PAYLOAD_BYTES}: store it elsewhere and pass a "
                f"reference"
            )
        if workflow_id is None:
            workflow_id = workflow_id_for(name, idempotency_key) if idempotency_key else str(uuid.uuid4())
        command = StartWorkflow(
            key=workflow_id,
            name=name,
            version=version,
            input=payload,
            correlation_id=correlation_id,
            priority=priority,
            created_by=self.operator,
            source=source,
            tenant=tenant,
            deadline_at_ms=None if deadline_at is None else _epoch_ms(deadline_at),
            task_to_domain=None if task_to_domain is None else _domains(task_to_domain),
            idempotency_key=idempotency_key,
            strategy=strategy,
            definition=orjson.dumps(definition) if definition is not None else None,
            **self._common(wants_answer=wants_answer),
        )
        return self._courier.send(command)

    def started(self, start: Future[Answered]) -> str:
        """The workflow id that ``start_async`` was answered with, once it is. Raises as ``start``."""
        self._courier.flush(0.005)  # what lingers goes at once
        return _check(self._wait(start)).message

    def start_task(self, task_type: str, input: JsonObject | None = None, **options: Any) -> str:
        """Start one task alone (a workflow of one step that takes the whole input) and return the workflow id."""
        definition = single_task_workflow(task_type)
        return _check(self._wait(self.start_async(task_type, input, definition=definition, **options))).message

    def get(self, workflow_id: str) -> WorkflowView:
        """A workflow with all its attempts.

        Raises:
            NotFound: there is none.
        """
        return self._views.workflow(workflow_id)

    def list(self) -> Iterator[WorkflowState]:
        """Every workflow that is kept, the newest first."""
        return self._views.workflows()

    def wait(self, workflow_id: str, timeout: float = 60.0) -> WorkflowView:
        """Wait until a workflow has ended.

        Raises:
            NoAnswer: it has not within the time.
        """
        ended = self._views.wait(workflow_id, lambda state: state.status.is_terminal, timeout)
        if ended is None:
            raise NoAnswer(f"workflow {workflow_id} has not ended within {timeout:g} s; it goes on")
        return self._views.workflow(workflow_id)

    def terminate(self, workflow_id: str, reason: str | None = None, *, compensate: bool = False) -> None:
        """End a live workflow; its live tasks are cancelled. With ``compensate`` what it has completed is undone, where
        its definition says how.

        Raises:
            NotFound: there is none.
            Conflict: it has ended already.
        """
        self.ask(TerminateWorkflow, workflow_id, reason=reason, compensate=compensate)

    def release(self, workflow_id: str) -> None:
        """End a workflow's quarantine.

        Raises:
            Conflict: it is in none.
        """
        _check(self._courier.ask(ReleaseWorkflow(key=workflow_id, **self._common()), self._timeout))

    def reset_callbacks(self, workflow_id: str) -> None:
        """Hand out now what waits for a callback.

        Raises:
            NotFound: there is no such workflow.
            Conflict: it has ended.
        """
        _check(self._courier.ask(ResetCallbacks(key=workflow_id, **self._common()), self._timeout))

    def move_task(self, task_id: str, domain: str, reason: str | None = None) -> TaskState:
        """Put a waiting task on the queue of another domain, where it stays; returns it as it was before.

        Reads the task states of every partition to find the workflow.

        Raises:
            NotFound: there is no such task.
            Conflict: it runs or has ended.
        """
        task = self._views.task(task_id)
        _check(self._courier.ask(self._move(task, domain, reason), self._timeout))
        return task

    def move_tasks(
        self, tasks: Sequence[TaskState], domain: str, reason: str | None = None
    ) -> Iterator[tuple[TaskState, Answered]]:
        """As ``move_task`` for tasks that are known, many at a time; each with its answer.

        Raises:
            NoAnswer: one got none.
        """
        for first in range(0, len(tasks), _MOVES_AT_A_TIME):
            batch = tasks[first : first + _MOVES_AT_A_TIME]
            futures = [self._courier.send(self._move(task, domain, reason)) for task in batch]
            self.flush()
            for task, future in zip(batch, futures, strict=True):
                yield task, self._wait(future)

    def _move(self, task: TaskState, domain: str, reason: str | None) -> MoveTask:
        about: dict[str, Any] = {"reference": task.reference, "task_id": task.task_id, "hand_out": task.hand_out}
        return MoveTask(key=task.workflow_id, domain=domain, reason=reason, **about, **self._common())

    def pause(self, workflow_id: str, reason: str | None = None) -> str:
        """Hand nothing more of a workflow out until it is resumed; what was handed out may be done.

        Returns what came of it.

        Raises:
            NotFound: there is no such workflow.
            Conflict: it has ended.
        """
        command = PauseWorkflow(key=workflow_id, reason=reason, **self._common())
        return _check(self._courier.ask(command, self._timeout)).message

    def resume(self, workflow_id: str) -> str:
        """Let a paused workflow go on. Returns what came of it.

        Raises:
            NotFound: there is no such workflow.
            Conflict: it is not paused.
        """
        return _check(self._courier.ask(ResumeWorkflow(key=workflow_id, **self._common()), self._timeout)).message

    def push_message(self, workflow_id: str, payload: Mapping[str, Any]) -> str:
        """Send a message to a live workflow: a PULL_WORKFLOW_MESSAGES task of it takes it, now or later.

        Returns the message's id.

        Raises:
            NotFound: there is no such workflow.
            Conflict: it has ended.
            PayloadTooLarge: the message is.
            TooManyRequests: too many messages wait to be taken; try again later.
        """
        command = PushMessage(key=workflow_id, payload=orjson.dumps(payload), **self._common())
        return _check(self._courier.ask(command, self._timeout)).message

    def cancel_task(self, target: str, reference: str | None = None, *, reason: str | None = None) -> str:
        """End a task as CANCELED: a waiting one at once, a running one at its next safe point. Returns what came of it.

        Args:
            target: the workflow's id, or (without ``reference``) the task's, which is looked for in every partition.
            reference: names the task in its workflow: its latest attempt is meant.

        Raises:
            NotFound: there is no such workflow or task.
            Conflict: the id is that of an earlier attempt.
        """
        return self._request(CancelTask, target, reference, reason)

    def pause_task(self, target: str, reference: str | None = None, *, reason: str | None = None) -> str:
        """Hold a task until it is resumed: a running one from its next safe point. Arguments as ``cancel_task``.

        Raises:
            NotFound: there is no such workflow or task.
            Conflict: it has ended, or is about to.
        """
        return self._request(PauseTask, target, reference, reason)

    def resume_task(self, target: str, reference: str | None = None) -> str:
        """Let a paused task go on. Arguments as ``cancel_task``.

        Raises:
            NotFound: there is no such workflow or task.
            Conflict: it is not paused, or its workflow is.
        """
        return self._request(ResumeTask, target, reference, None)

    def _request(self, kind: type[TaskRequest], target: str, reference: str | None, reason: str | None) -> str:
        about: dict[str, Any] = {"key": target, "reference": reference}
        if reference is None:
            task = self._views.task(target)
            about = {"key": task.workflow_id, "reference": task.reference, "task_id": target}
        command = kind(**about, reason=reason, **self._common())
        # The closed list of commands names the three kinds, not their base.
        return _check(self._courier.ask(cast("AnyCommand", command), self._timeout)).message

    def end_task(
        self,
        target: str,
        reference: str | None = None,
        *,
        status: ReportStatus = ReportStatus.COMPLETED,
        output: JsonObject | None = None,
        reason: str | None = None,
    ) -> str:
        """End a live task by hand: a HUMAN or a WAIT, or in a worker's place. Returns the task's id.

        Args:
            target: the workflow's id, or (without ``reference``) the task's.
            reference: names the task in its workflow: its latest attempt is meant.
            status: as a worker would report it; a failure follows the task's retries.
            output: the task's output.
            reason: why; kept with the task.

        Raises:
            NotFound: there is no such workflow or task.
            Conflict: it has ended already.
        """
        task = self._views.task(target) if reference is None else task_of(self._views, target, reference)
        if task.is_terminal:
            raise Conflict(f"task {task.reference} is {task.status} already: only a live task can be ended")
        about: dict[str, Any] = {"reference": task.reference, "task_id": task.task_id, "hand_out": task.hand_out}
        data = None if output is None else orjson.dumps(dict(output))
        command = TaskReported(
            key=task.workflow_id, status=status, output=data, reason=reason, **about, **self._common()
        )
        return _check(self._courier.ask(command, self._timeout)).message

    def extend_lease(self, task_id: str) -> None:
        """Start the response clock of a running attempt anew; an ended one is left alone.

        Reads the task states of every partition to find the workflow.

        Raises:
            NotFound: there is no such task.
        """
        task = self._views.task(task_id)
        about: dict[str, Any] = {"reference": task.reference, "task_id": task_id, "hand_out": task.hand_out}
        _check(self._courier.ask(ExtendLease(key=task.workflow_id, **about, **self._common()), self._timeout))

    def explain(self, name: str, reference: str | None = None) -> Explanation:
        """What a task does or waits for, in one sentence, with what is known about it.

        Reads the task states of every partition, who serves its queue, and the limits that it waits for.

        Args:
            name: the id of the task; with ``reference`` that of its workflow (the latest attempt is meant).

        Raises:
            NotFound: there is no such task.
        """
        return diagnose(self._views, name, reference, time.time_ns() // 1_000_000)

    def ask(self, kind: Callable[..., AnyCommand], key: str, **fields: Any) -> str:
        """Send a command of any kind and return what came of it. Raises what its answer stands for."""
        return _check(self._courier.ask(kind(key=key, **fields, **self._common()), self._timeout)).message

    def flush(self, timeout: float = 30.0) -> int:
        """Wait until everything sent by ``start_async`` is in the log; returns how many are not."""
        return self._courier.flush(timeout)

    def _wait(self, future: Future[Answered]) -> Answered:
        try:
            return future.result(self._timeout)
        except TimeoutError as error:
            raise NoAnswer from error

    def _common(self, *, wants_answer: bool = True) -> dict[str, Any]:
        return {
            "command_id": str(uuid.uuid4()),
            "expires_at_ms": time.time_ns() // 1_000_000 + COMMAND_LIFETIME_MS,
            "reply_to": self._courier.client_id if wants_answer else None,
            "operator": self.operator,
        }


def _queue(task_type: str, domain: str | None) -> str:
    """The key of the stop of a queue."""
    if not task_type:
        raise BadRequest("the task type of a queue may not be empty: name it as `broker-engine queue list` shows it")
    problem = None if domain is None else name_problem(domain)
    if problem is not None:
        raise BadRequest(f"domain {problem}")
    return queue_key(task_type, domain)


def _one_of(workflow: str | None, tenant: str | None) -> None:
    if workflow is not None and tenant is not None:
        raise BadRequest("a stop is about a workflow or a tenant: give one of them, or none for everything")


def _capped(tenant: str | None, domain: str | None) -> str:
    if tenant is not None and domain is not None:
        raise BadRequest("a cap is about a tenant or a domain: give one of them, or none for all tasks")
    return cap_key(tenant=tenant, domain=domain)


def _domains(task_to_domain: Mapping[str, str]) -> bytes:
    document = orjson.dumps(dict(task_to_domain))
    problem = domains_problem(document)
    if problem is not None:
        raise BadRequest(problem)
    return document


def _epoch_ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise BadRequest(f"deadline_at {moment.isoformat()} has no time zone: give one, for example UTC")
    return int(moment.timestamp() * 1_000)


def _check(answer: Answered) -> Answered:
    raise_for(answer)
    return answer


def _warnings(answer: Answered) -> list[str]:
    """The warnings of a registration, or its violations as an error."""
    body = orjson.loads(answer.message) if answer.message.startswith("{") else {}
    if answer.status == 400 and body.get("validationErrors"):
        raise BadRequest(
            violations=tuple(
                Violation(path=v["path"], message=v["message"], invalid_value=v["invalidValue"])
                for v in body["validationErrors"]
            )
        )
    raise_for(answer, body.get("message"))
    return list(body.get("warnings", ()))


def _shown(document: bytes) -> dict[str, Any]:
    """A stored definition as it is shown: without empty fields, as Conductor's JSON."""
    return {name: value for name, value in orjson.loads(document).items() if value is not None}
