"""The engine's promises, judged by what stood on its topics and by nothing else.

Each checker takes records (from a simulation or a real cluster) and returns what is wrong, a sentence each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import accumulate

from broker_engine.errors import DecodeError
from broker_engine.log.ports import Record
from broker_engine.model.commands import StartWorkflow, TaskReported
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.status import IN_HAND, Phase, ReasonCode
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import COMMAND, EVENT, SCHEDULED_TASK, TASK_STATE, WORKFLOW_STATE
from broker_engine.wire.commands import DECODERS


class Records:
    """Records by topic, in the order of their offsets."""

    def __init__(self, namespace: Namespace, records: Iterable[Record]) -> None:
        self.namespace = namespace
        self._by_topic: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            self._by_topic[record.topic].append(record)
        for found in self._by_topic.values():
            found.sort(key=lambda record: (record.partition, record.offset))

    def named(self, topic: str) -> list[Record]:
        return self._by_topic[topic]

    def of(self, topic: Topic) -> list[Record]:
        return self._by_topic[self.namespace.topic(topic)]

    def schedules(self) -> Iterator[Record]:
        for name, records in self._by_topic.items():
            if self.namespace.is_schedule(name):
                yield from records

    def tasks(self) -> Iterator[TaskState]:
        for record in self.of(Topic.TASK_STATE):
            if record.value is not None:
                yield TASK_STATE.decode(record.value)

    def workflows(self) -> Iterator[WorkflowState]:
        for record in self.of(Topic.WORKFLOW_STATE):
            if record.value is not None:
                yield WORKFLOW_STATE.decode(record.value)


def terminal_never_changes(records: Records) -> list[str]:
    """Within one run an ended task or workflow stays as it is (a note that it was retried is no change)."""
    problems = []
    ended: dict[str, TaskState] = {}
    for task in records.tasks():
        before = ended.get(task.task_id)
        if before is not None and task._replace(is_retried=before.is_retried) != before:
            problems.append(f"task {task.task_id} was {before.status} and became {task.status}")
        if task.is_terminal:
            ended[task.task_id] = task
    done: dict[tuple[str, int], WorkflowState] = {}
    for workflow in records.workflows():
        run = (workflow.workflow_id, workflow.run)
        last = done.get(run)
        if last is not None and (workflow.status, workflow.output, workflow.ended_at_ms) != (
            last.status,
            last.output,
            last.ended_at_ms,
        ):
            problems.append(f"workflow {run} was {last.status} and became {workflow.status}")
        if workflow.status.is_terminal:
            done[run] = workflow
    return problems


def one_schedule_per_hand_out(records: Records) -> list[str]:
    """At most one committed schedule record per (task, hand-out), and hand-outs without gaps (but for those that a
    pause has made void while they waited for their slot)."""
    counts: Counter[tuple[str, int]] = Counter()
    for record in records.schedules():
        work = SCHEDULED_TASK.decode(record.value)
        counts[work.task_id, work.hand_out] += 1
    problems = [
        f"task {task}, hand-out {number} was scheduled {n} times" for (task, number), n in counts.items() if n > 1
    ]
    void = {(task.task_id, task.hand_out) for task in records.tasks() if task.phase is Phase.PAUSED}
    for task in _latest(records).values():
        numbers = range(1, task.hand_out + 1)
        missing = [n for n in numbers if not counts[task.task_id, n] and (task.task_id, n) not in void]
        if missing:
            problems.append(f"task {task.task_id} has hand-outs {missing} that were never scheduled")
    return problems


def attempts_are_bounded(records: Records, retry_counts: Mapping[str, int]) -> list[str]:
    """Attempts ≤ retryCount + 1 within one run, numbered without gaps."""
    attempts: dict[tuple[str, int, str], dict[int, str]] = defaultdict(dict)
    problems = []
    for task in _latest(records).values():
        seen = attempts[task.workflow_id, task.run, task.reference]
        if task.attempt in seen:
            problems.append(f"attempt {task.attempt} of {task.reference} in {task.workflow_id} exists twice")
        seen[task.attempt] = task.task_type
    for place, seen in attempts.items():
        allowed = retry_counts[next(iter(seen.values()))] + 1
        if len(seen) > allowed or set(seen) != set(range(len(seen))):
            problems.append(f"{place} has attempts {sorted(seen)}, {allowed} are allowed")
    return problems


def no_retry_before_its_delay(records: Records) -> list[str]:
    """Nothing is on its queue before its due moment, by the broker's clock."""
    tasks, problems = _latest(records), []
    for record in records.schedules():
        work = SCHEDULED_TASK.decode(record.value)
        task = tasks[work.task_id]
        if task.due_at_ms is not None and record.timestamp_ms < task.due_at_ms:
            problems.append(f"task {task.task_id} was due at {task.due_at_ms} and scheduled at {record.timestamp_ms}")
    by_id = dict(tasks)
    for task in tasks.values():
        before = by_id.get(task.retried_task_id or "")
        if before is None or task.handed_out_at_ms is None:
            continue
        waited = task.handed_out_at_ms - (before.ended_at_ms or 0)
        if waited < task.retry_delay_ms:
            problems.append(f"task {task.task_id} waited {waited} ms of {task.retry_delay_ms}")
    return problems


def no_timeout_while_a_result_was_unread(records: Records) -> list[str]:
    """A response time-out at offset N means that no report under the task's lease stands at or before N."""
    reports: dict[tuple[str, int | None], list[tuple[int, int]]] = defaultdict(list)
    for record in records.of(Topic.COMMANDS):
        command = _command(record)
        if isinstance(command, TaskReported):
            reports[command.task_id, command.lease].append((record.partition, record.offset))
    leases = {task.task_id: task.lease for task in _latest(records).values()}
    problems = []
    for record in records.of(Topic.EVENTS):
        event = EVENT.decode(record.value)
        for step in event.transitions:
            if step.reason_code is ReasonCode.RESPONSE_TIMEOUT and step.task_id is not None:
                for partition, offset in reports[step.task_id, leases.get(step.task_id)]:
                    if partition == event.partition and offset < event.offset:
                        problems.append(f"task {step.task_id} timed out at {event.offset}, its result is at {offset}")
    return problems


def every_start_has_a_workflow(records: Records, started: Iterable[str]) -> list[str]:
    """Nothing is lost."""
    known = {workflow.workflow_id for workflow in records.workflows()}
    return [f"workflow {workflow_id} was lost" for workflow_id in started if workflow_id not in known]


def every_workflow_ends(records: Records) -> list[str]:
    """When faults have stopped and time has run on."""
    last = {workflow.workflow_id: workflow for workflow in records.workflows()}
    return [
        f"workflow {workflow_id} is still {workflow.status} (quarantine: {workflow.quarantine})"
        for workflow_id, workflow in last.items()
        if not workflow.status.is_terminal
    ]


def ended_workflows_have_no_live_task(records: Records) -> list[str]:
    last = {workflow.workflow_id: workflow for workflow in records.workflows()}
    return [
        f"task {task.task_id} is {task.phase}, its workflow {last[task.workflow_id].status}"
        for task in _latest(records).values()
        if not task.is_terminal and last[task.workflow_id].status.is_terminal
    ]


def no_transaction_was_torn(records: Records) -> list[str]:
    """Every hand-out that a state tells of is known to it, and the other way round: they were one transaction."""
    tasks = _latest(records)
    return [
        f"schedule of {work.task_id}/{work.hand_out} without its state"
        for record in records.schedules()
        if (work := SCHEDULED_TASK.decode(record.value)).task_id not in tasks
        or tasks[work.task_id].hand_out < work.hand_out
    ]


def each_command_is_decided_once(records: Records) -> list[str]:
    """(partition, offset, workflow, was it a deadline) is an event's identity."""
    counts: Counter[tuple[int, int, str, str]] = Counter()
    for record in records.of(Topic.EVENTS):
        event = EVENT.decode(record.value)
        if event.offset >= 0:  # a start stands in a lane; its workflow id is its identity
            counts[event.partition, event.offset, event.workflow_id, event.command] += 1
    # One record may let several deadlines of one workflow pass, one after another.
    return [f"{place} was decided {n} times" for place, n in counts.items() if n > 1 and place[3] != "DEADLINE_REACHED"]


def never_more_in_progress(records: Records, limits: Mapping[str, int]) -> list[str]:
    """At no moment of the log are more tasks of a type IN_PROGRESS than its limit."""
    types = {task.task_id: task.task_type for task in records.tasks()}
    problems = []
    for task_type, limit in limits.items():
        most = most_in_progress(records, {task_id for task_id, name in types.items() if name == task_type})
        if most > limit:
            problems.append(f"{most} tasks of {task_type} were in progress at once, {limit} are allowed")
    return problems


def most_in_progress(records: Records, tasks: Container[str]) -> int:
    """The largest number of these tasks in progress at once, by the log times of the transitions."""
    changes = [
        (event.at_ms, (step.to_phase in IN_HAND) - (step.from_phase in IN_HAND))
        for record in records.of(Topic.EVENTS)
        for event in [EVENT.decode(record.value)]
        for step in event.transitions
        if step.task_id in tasks
    ]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def starts_on_the_log(records: Records) -> set[str]:
    return {
        command.key
        for topic in (records.namespace.topic(Topic.COMMANDS), *records.namespace.start_lanes())
        for record in records.named(topic)
        if isinstance(command := _command(record), StartWorkflow)
    }


def _latest(records: Records) -> dict[str, TaskState]:
    return {task.task_id: task for task in records.tasks()}


def _command(record: Record) -> object:
    try:
        flat = COMMAND.decode(record.value)
        return DECODERS[flat.type](
            flat,
            {"key": flat.key, "at_ms": record.timestamp_ms, "offset": record.offset},
        )
    except (DecodeError, KeyError):
        return None
