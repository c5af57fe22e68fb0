"""What the thread of a queue does with the records it reads, on a log in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_engine.log.memory import MemoryLog
from broker_engine.log.ports import BEGINNING, GroupReader, NewTopic, TopicPartition
from broker_engine.model.state import Step
from broker_engine.model.status import StepStatus
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import COMMAND, REPLY, SCHEDULED_TASK
from broker_engine.wire.kinds import ReplyKind
from broker_engine.wire.records import Reply, ScheduledTask, StartResume, StartVerdict
from broker_engine.wire.resume import encode_resume
from broker_engine.worker import TaskContext, TaskWorker, task
from broker_engine.worker.controls import Controls
from broker_engine.worker.presence import Presence
from broker_engine.worker.queue_loop import QueueLoop
from broker_engine.worker.slots import Slots
from broker_engine.worker.verdicts import Verdicts

NAMES = Namespace("n")
QUEUE = NAMES.schedule("default", "work")


@task(name="work", concurrency=8)
def work() -> None: ...


class Desk:
    """A queue's loop with its thread left out."""

    def __init__(self) -> None:
        self.log = MemoryLog(lambda: time.time_ns() // 1_000_000)
        topics = (QUEUE, NAMES.topic(Topic.COMMANDS), NAMES.topic(Topic.REPLIES))
        self.log.admin().create([NewTopic(name=name, partitions=1) for name in topics])
        self.writer = self.log.writer(client_id="test")
        self.began: list[str] = []
        self.contexts: list[TaskContext] = []
        self.verdicts = Verdicts(self.log, NAMES, 1, "me")
        writer = self.log.writer(client_id="me")
        self.loop = QueueLoop(
            self.log,
            NAMES,
            work,
            Slots(8),
            worker_id="me",
            writer=writer,
            verdicts=self.verdicts,
            presence=Presence(self.log, NAMES, "me", writer, []),
            controls=Controls(self.log, NAMES, [work.domain]),
            run=self._run,
        )
        reader = self.loop._join(threading.Event())
        assert reader is not None
        self.reader: GroupReader = reader

    def _run(self, _task: TaskWorker, work: ScheduledTask, context: TaskContext, ended: Callable[[], None]) -> None:
        self.began.append(work.task_id)
        self.contexts.append(context)
        ended()

    def put(self, *task_ids: str, **fields: Any) -> None:
        for task_id in task_ids:
            defaults: dict[str, Any] = {
                **{"workflow_id": "w", "workflow_name": "w", "reference": "a", "task_type": "work"},
                **{"domain": "default", "partition": 0, "run": 0, "attempt": 0, "hand_out": 1, "priority": 0},
                **{"input": b"{}", "response_timeout_ms": 0, "timeout_ms": 0, "scheduled_at_ms": 0},
            }
            scheduled = ScheduledTask(task_id=task_id, **{**defaults, **fields})
            self.writer.send(QUEUE, 0, task_id.encode(), SCHEDULED_TASK.encode(scheduled))
        self.writer.poll()

    def look(self) -> None:
        """One round of the loop."""
        records = self.reader.read(100, 0.0)
        self.loop._look_at(self.reader.assignment())
        if records:
            self.loop._take(records)

    def asked(self) -> list[tuple[str, bool]]:
        """Every start that was sent, and whether it asks for a confirmation."""
        reader = self.log.reader()
        reader.assign({TopicPartition(NAMES.topic(Topic.COMMANDS), 0): BEGINNING})
        sent = [COMMAND.decode(record.value) for record in reader.read(100, 0.0)]
        return [(start.task_id or "", start.wants_confirmation) for start in sent]


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.reader.close()


def test_what_stood_on_a_partition_when_it_came_is_asked_about(desk: Desk) -> None:
    """Another worker may have started it and died before its offset was committed."""
    desk.put("earlier")
    desk.look()

    assert (desk.asked(), desk.began) == ([("earlier", True)], [])


def test_what_came_later_runs_at_once(desk: Desk) -> None:
    desk.look()
    desk.put("later")
    desk.look()

    assert (desk.asked(), desk.began) == ([("later", False)], ["later"])


def test_of_what_is_fetched_the_highest_priority_starts_first_and_then_the_oldest(desk: Desk) -> None:
    desk.look()
    for task_id, priority in (("a", 0), ("b", 5), ("c", 99), ("d", 5)):
        desk.put(task_id, priority=priority)
    desk.look()

    assert desk.began == ["c", "b", "d", "a"]
    assert [task_id for task_id, _ in desk.asked()] == ["c", "b", "d", "a"]


def test_a_start_that_takes_over_begins_with_the_steps_of_the_one_before(desk: Desk) -> None:
    desk.put("a")
    desk.look()
    step = Step(name="PARSE", status=StepStatus.COMPLETED, started_at_ms=0, result=b"7")
    resume = StartResume("a", 0, encode_resume((step,), b"3"))
    desk.verdicts._take(REPLY.encode(Reply(kind=ReplyKind.STARTS, resumes=(resume,))))
    desk.verdicts._take(REPLY.encode(Reply(kind=ReplyKind.STARTS, verdicts=(StartVerdict("a", 1, 0, True),))))

    (context,) = desk.contexts
    assert context._resume.steps["PARSE"].result == 7
    assert context.saved_checkpoint == 3
