"""What is known of the import while it runs, read from the state topics as any observer would."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Group
from rich.table import Table
from rich.text import Text

from broker_engine.cli.output import make_table
from broker_engine.log.ports import BEGINNING, Log, TopicPartition
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.status import Phase, StepStatus, TaskStatus, WorkflowStatus
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import TASK_STATE, WORKFLOW_STATE

STEPS = ("VALIDATE", "PARSE", "UPSERT", "REPORT")


class Progress:
    """The last state of every workflow and task of this run."""

    def __init__(self, log: Log, namespace: Namespace, partitions: int, prefix: str) -> None:
        """``prefix``: what this run's workflow ids begin with."""
        self.workflows: dict[str, WorkflowState] = {}
        self.tasks: dict[str, TaskState] = {}
        #: What happened besides, with its moment: kills and restarts.
        self.events: list[str] = []
        self.started = 0
        self._prefix = prefix.encode()
        self._workflow_topic = namespace.topic(Topic.WORKFLOW_STATE)
        self._began = time.monotonic()
        self._reader = log.reader()
        topics = (self._workflow_topic, namespace.topic(Topic.TASK_STATE))
        self._reader.assign({TopicPartition(t, number): BEGINNING for t in topics for number in range(partitions)})

    def read(self, timeout: float) -> None:
        """Take in what was written."""
        for record in self._reader.read(2_000, timeout):
            if record.value is None or self._prefix not in record.value:
                continue
            if record.topic == self._workflow_topic:
                workflow = WORKFLOW_STATE.decode(record.value)
                self.workflows[workflow.workflow_id] = workflow
            else:
                task = TASK_STATE.decode(record.value)
                self.tasks[task.task_id] = task

    def close(self) -> None:
        self._reader.close()

    def tell(self, event: str) -> str:
        told = f"{self.seconds:5.1f} s  {event}"
        self.events.append(told)
        return told

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def ended(self) -> int:
        return sum(workflow.status.is_terminal for workflow in self.workflows.values())

    @property
    def completed(self) -> int:
        return sum(workflow.status is WorkflowStatus.COMPLETED for workflow in self.workflows.values())

    def running(self, workflow_id: str, reference: str) -> TaskState | None:
        """The attempt of a task that a worker runs now."""
        return next(
            (
                task
                for task in self.tasks.values()
                if task.workflow_id == workflow_id and task.reference == reference and task.phase is Phase.RUNNING
            ),
            None,
        )

    # --- how it looks

    def line(self, total: int) -> str:
        """One line, for logs."""
        phases = Counter(task.phase for task in self.tasks.values())
        return (
            f"{self.seconds:5.1f} s  {self.started}/{total} started, {self.completed} completed; tasks: "
            f"{phases[Phase.QUEUED]} queued, {phases[Phase.RUNNING]} running, {phases[Phase.RETRY_WAIT]} waiting to "
            f"retry, {phases[Phase.SUCCEEDED]} done, {phases[Phase.FAILED]} failed, {phases[Phase.TIMED_OUT]} timed out"
        )

    def picture(self, total: int) -> Group:
        """The live table: attempts by phase, and the steps that they are in."""
        shown = (Phase.QUEUED, Phase.RUNNING, Phase.RETRY_WAIT, Phase.SUCCEEDED, Phase.FAILED, Phase.TIMED_OUT)
        phases = Counter(task.phase for task in self.tasks.values())
        columns = [phase.replace("_", " ") for phase in shown]
        attempts: Table = make_table(columns, [[phases[phase] for phase in shown]], title="attempts")
        counts = Counter((step.name, step.status) for task in self.latest() for step in task.steps)
        rows = ([name, *(counts[name, status] for status in StepStatus)] for name in STEPS)
        steps: Table = make_table(("STEP", "RUNNING", "COMPLETED", "FAILED"), rows, title="steps")
        head = Text(f"{self.seconds:5.1f} s  workflows: {self.started}/{total} started, {self.completed} completed")
        return Group(head, attempts, steps, *(Text(event, style="yellow") for event in self.events[-8:]))

    # --- sums

    def latest(self) -> list[TaskState]:
        """The newest attempt of each workflow's task."""
        newest: dict[str, TaskState] = {}
        for task in sorted(self.tasks.values(), key=lambda task: task.attempt):
            newest[task.workflow_id] = task
        return list(newest.values())

    @property
    def repeated_upserts(self) -> int:
        """Imports whose rows were stored again although an earlier attempt had completed that."""
        tries: dict[str, list[int]] = {}
        for task in self.tasks.values():
            for step in task.steps:
                if step.name == "UPSERT" and step.status is StepStatus.COMPLETED:
                    tries.setdefault(task.workflow_id, []).append(step.tries)
        return sum(max(found) > min(found) for found in tries.values())

    @property
    def retries(self) -> int:
        return sum(task.attempt > 0 for task in self.tasks.values())

    def attempts_ended_as(self, status: TaskStatus) -> int:
        return sum(task.status is status for task in self.tasks.values())
