"""Conformance rows in which a clock or a crash matters, on real Kafka, with the SDK's workers and client.

All workflows start at once in one engine and are looked at when they have ended, so the module takes as long as its
slowest row. What each row means exactly is told as values in test_values.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from broker_engine.model.commands import TaskReported
from broker_engine.model.state import TaskState
from broker_engine.model.status import ReasonCode, ReportStatus
from broker_engine.topics import Topic, partition_of
from broker_engine.wire.codecs import COMMAND, EVENT, SCHEDULED_TASK
from broker_engine.wire.commands import encode_command
from broker_engine.wire.kinds import CommandType
from broker_engine.wire.records import TransitionEvent
from broker_engine.wire.signing import Signer
from broker_engine.worker import TaskContext, TaskFailed, WorkflowView, task
from tests.support import promises
from tests.support.roles import KEY, RunningEngine, running_engine, until

pytestmark = pytest.mark.kafka

_over = threading.Event()
#: (task type, attempt) of every run of a function.
RAN: list[tuple[str, int]] = []


def sleep(seconds: float) -> None:
    """Like a busy function, but one that ends with the tests."""
    _over.wait(seconds)


@task(name="r2", retryCount=3, retryDelaySeconds=0)
def r2() -> None:
    raise TaskFailed("always")


@task(name="r4-fixed", retryCount=2, retryDelaySeconds=1, retryLogic="FIXED")
def r4_fixed() -> None:
    raise TaskFailed("always")


@task(name="r4-linear", retryCount=2, retryDelaySeconds=1, backoffScaleFactor=2, retryLogic="LINEAR_BACKOFF")
def r4_linear() -> None:
    raise TaskFailed("always")


@task(name="r4-exponential", retryCount=2, retryDelaySeconds=1, retryLogic="EXPONENTIAL_BACKOFF")
def r4_exponential() -> None:
    raise TaskFailed("always")


@task(name="r5", retryCount=2, retryDelaySeconds=1, retryLogic="EXPONENTIAL_BACKOFF", maxRetryDelaySeconds=1)
def r5() -> None:
    raise TaskFailed("always")


@task(name="r6", retryCount=1, retryDelaySeconds=1, backoffJitterMs=800)
def r6() -> None:
    raise TaskFailed("always")


@task(name="r10", heartbeat=False, retryCount=1, retryDelaySeconds=0, responseTimeoutSeconds=2)
def r10(context: TaskContext) -> dict[str, Any]:
    RAN.append(("r10", context.attempt))
    if context.attempt == 0:
        sleep(4)  # answers when the attempt has timed out long ago (row 15)
    return {"attempt": context.attempt}


@task(
    name="r11",
    heartbeat=False,
    retryCount=1,
    retryDelaySeconds=0,
    timeoutSeconds=2,
    responseTimeoutSeconds=2,
    timeoutPolicy="RETRY",
)
def r11() -> None:
    sleep(20)


@task(
    name="r12", heartbeat=False, retryCount=5, timeoutSeconds=2, responseTimeoutSeconds=2, timeoutPolicy="TIME_OUT_WF"
)
def r12() -> None:
    sleep(20)


@task(
    name="r13", heartbeat=False, retryCount=0, timeoutSeconds=10, responseTimeoutSeconds=10, timeoutPolicy="ALERT_ONLY"
)
def r13() -> None:
    sleep(60)


@task(name="r14", retryCount=1, retryDelaySeconds=8, pollTimeoutSeconds=6, timeoutPolicy="RETRY")
def r14(context: TaskContext) -> None:
    RAN.append(("r14", context.attempt))


@task(name="r16", retryCount=0)
def r16() -> dict[str, int]:
    return {"x": 1}


@task(name="r17", retryCount=3, totalTimeoutSeconds=2, timeoutPolicy="ALERT_ONLY")
def r17() -> None:
    sleep(3)
    raise TaskFailed("disk full")


@task(name="r18-retry", retryCount=3, totalTimeoutSeconds=2, timeoutPolicy="RETRY")
def r18_retry() -> None:
    sleep(20)


@task(name="r18-wf", retryCount=3, totalTimeoutSeconds=2, timeoutPolicy="TIME_OUT_WF")
def r18_wf() -> None:
    sleep(20)


@task(name="r18-alert", retryCount=3, totalTimeoutSeconds=2, timeoutPolicy="ALERT_ONLY")
def r18_alert() -> dict[str, bool]:
    sleep(4)
    return {"done": True}


@task(
    name="r22", heartbeat=False, retryCount=3, timeoutSeconds=2, responseTimeoutSeconds=2, timeoutPolicy="TIME_OUT_WF"
)
def r22() -> None:
    sleep(20)


SERVED = [
    r2, r4_fixed, r4_linear, r4_exponential, r5, r6, r10, r11, r12, r13, r16, r17, r18_retry, r18_wf, r18_alert, r22
]  # fmt: skip
JITTERED = 10


class Rows:
    """The engine with every row's workflow started."""

    def __init__(self, engine: RunningEngine) -> None:
        self.engine = engine
        client = engine.client
        engine.work(*SERVED)
        until(lambda: len(client.task_definitions()) >= len(SERVED), what="the registration")
        client.register_task(r14.definition or {})
        step = {"name": "r16", "taskReferenceName": "b"}
        client.register_workflow({"name": "two", "tasks": [{"name": "r16", "taskReferenceName": "a"}, step]})
        optional = {"name": "r22", "taskReferenceName": "a", "optional": True}
        client.register_workflow({"name": "optional", "tasks": [optional, step]})
        self.alerted_status = ""
        self.ids = {"r14": client.start_task("r14")}
        self.started_r14 = time.monotonic()
        for worker in SERVED:
            if worker not in (r6, r16, r22):
                self.ids[worker.name] = client.start_task(worker.name)
        for number in range(JITTERED):
            self.ids[f"r6-{number}"] = client.start_task("r6")
        self.ids["r16"] = client.start("two")
        self.ids["r22"] = client.start("optional")
        threading.Thread(target=self._take_r14, daemon=True).start()
        threading.Thread(target=self._repeat_r16, daemon=True).start()
        threading.Thread(target=self._r13, daemon=True).start()

    def ended(self, row: str) -> WorkflowView:
        return self.engine.client.wait(self.ids[row], 75)

    def tasks(self, row: str) -> tuple[TaskState, ...]:
        return self.ended(row).tasks

    def events(self, row: str) -> list[TransitionEvent]:
        records = self.engine.records(Topic.EVENTS)
        return [EVENT.decode(r.value) for r in records if r.key == self.ids[row].encode()]

    def alerts(self, row: str) -> int:
        steps = [step for event in self.events(row) for step in event.transitions]
        return sum(step.reason_code is ReasonCode.TIMEOUT_ALERT for step in steps)

    def _take_r14(self) -> None:
        """Its queue gets a worker when the first hand-out has lain there for more than five seconds."""
        sleep(7)
        self.engine.work(r14)

    def _repeat_r16(self) -> None:
        """The worker's report of the first task stands twice on the log."""
        self.repeat("r16", "a", CommandType.TASK_REPORTED)

    def _r13(self) -> None:
        """Each further start moves the response time-out behind the task's own; when the alert is told, an operator
        completes the task by hand."""
        while not self.alerts("r13"):
            time.sleep(2)
            self.repeat("r13", "r13", CommandType.TASK_STARTED)
        (running,) = self.engine.client.get(self.ids["r13"]).tasks
        self.alerted_status = running.status
        report = TaskReported(
            key=running.workflow_id,
            reference=running.reference,
            task_id=running.task_id,
            hand_out=running.hand_out,
            status=ReportStatus.COMPLETED,
            output=b'{"done":true}',
        )
        self.write(report.key, encode_command(report, Signer(KEY)))

    def repeat(self, row: str, reference: str, kind: CommandType) -> None:
        def found() -> bytes | None:
            for record in self.engine.records(Topic.COMMANDS):
                if record.key == self.ids[row].encode():
                    command = COMMAND.decode(record.value)
                    if command.type is kind and command.reference == reference:
                        return record.value
            return None

        self.write(self.ids[row], until(found, what=f"the {kind} of {row}"))

    def write(self, key: str, value: bytes) -> None:
        writer = self.engine.log.writer(client_id="test")
        topic = self.engine.namespace.topic(Topic.COMMANDS)
        writer.send(topic, partition_of(key, self.engine.client.partitions), key.encode(), value)
        assert writer.flush(30) == 0
        writer.close()


@pytest.fixture(scope="module")
def rows(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    _over.clear()
    name = f"rows-{time.time_ns() % 10**9}"
    with running_engine(bootstrap, name, tmp_path_factory.mktemp("engine"), partitions=2) as engine:
        yield Rows(engine)
        _over.set()


def waits(tasks: tuple[TaskState, ...]) -> list[int]:
    """From the end of an attempt to the moment at which the next one is put on its queue."""
    return [(after.handed_out_at_ms or 0) - (before.ended_at_ms or 0) for before, after in pairwise(tasks)]


def test_row_02_four_failures_use_three_retries_and_fail_the_workflow(rows: Rows) -> None:
    view = rows.ended("r2")

    assert view.status == "FAILED"
    assert [(task.attempt, task.status, task.is_retried) for task in view.tasks] == [
        (0, "FAILED", True),
        (1, "FAILED", True),
        (2, "FAILED", True),
        (3, "FAILED", False),
    ]
    assert [task.retried_task_id for task in view.tasks] == [None, *(task.task_id for task in view.tasks[:-1])]


@pytest.mark.parametrize(
    ("row", "delays"),
    [("r4-fixed", [1_000, 1_000]), ("r4-linear", [2_000, 4_000]), ("r4-exponential", [1_000, 2_000])],
)
def test_row_04_the_delays_of_each_retry_logic(rows: Rows, row: str, delays: list[int]) -> None:
    tasks = rows.tasks(row)

    assert [task.retry_delay_ms for task in tasks[1:]] == delays
    assert all(wait >= delay for wait, delay in zip(waits(tasks), delays, strict=True))


def test_row_05_the_cap_limits_every_delay(rows: Rows) -> None:
    tasks = rows.tasks("r5")

    assert [task.retry_delay_ms for task in tasks[1:]] == [1_000, 1_000]
    assert all(wait >= 1_000 for wait in waits(tasks))


def test_row_06_jitter_spreads_the_retries_and_never_shortens_a_delay(rows: Rows) -> None:
    delays = []
    for number in range(JITTERED):
        first, second = rows.tasks(f"r6-{number}")
        assert (second.handed_out_at_ms or 0) - (first.ended_at_ms or 0) >= second.retry_delay_ms
        delays.append(second.retry_delay_ms)

    assert all(1_000 <= delay <= 1_800 for delay in delays)
    assert len(set(delays)) > JITTERED // 2


def test_row_10_a_worker_that_does_not_answer_is_replaced(rows: Rows) -> None:
    view = rows.ended("r10")

    assert view.status == "COMPLETED"
    assert [task.status for task in view.tasks] == ["TIMED_OUT", "COMPLETED"]
    assert view.tasks[0].reason_code is ReasonCode.RESPONSE_TIMEOUT


def test_row_11_two_overruns_use_up_the_retry_and_the_workflow_times_out(rows: Rows) -> None:
    view = rows.ended("r11")

    assert view.status == "TIMED_OUT"
    assert [task.status for task in view.tasks] == ["TIMED_OUT", "TIMED_OUT"]


def test_row_12_time_out_wf_ends_the_workflow_at_once(rows: Rows) -> None:
    view = rows.ended("r12")

    assert view.status == "TIMED_OUT"
    assert [task.status for task in view.tasks] == ["TIMED_OUT"]


def test_row_13_alert_only_alerts_once_and_a_later_result_counts(rows: Rows) -> None:
    view = rows.ended("r13")

    assert rows.alerted_status == "IN_PROGRESS"
    assert [task.status for task in view.tasks] == ["COMPLETED"]
    assert view.status == "COMPLETED"
    assert rows.alerts("r13") == 1


def test_row_14_a_hand_out_that_nobody_took_in_time_is_void(rows: Rows) -> None:
    view = rows.ended("r14")

    assert [task.status for task in view.tasks] == ["TIMED_OUT", "COMPLETED"]
    assert view.tasks[0].reason_code is ReasonCode.POLL_TIMEOUT
    topic = rows.engine.namespace.schedule("default", "r14")
    assert [SCHEDULED_TASK.decode(r.value).attempt for r in rows.engine.records(topic)].count(0) == 1
    assert [attempt for name, attempt in RAN if name == "r14"] == [1], "the old one was found and not run"


def test_row_15_a_late_result_is_ignored_and_recorded(rows: Rows) -> None:
    view = rows.ended("r10")

    def ignored() -> list[str]:
        return [event.ignored for event in rows.events("r10") if event.ignored and "bytes of output" in event.ignored]

    (reason,) = until(ignored, 20, what="the late report")
    assert reason.startswith("COMPLETED with 13 bytes of output")
    assert ("r10", 0) in RAN
    assert view.output == {"attempt": 1}
    assert [task.status for task in rows.engine.client.get(rows.ids["r10"]).tasks] == ["TIMED_OUT", "COMPLETED"]


def test_row_16_a_result_sent_twice_counts_once(rows: Rows) -> None:
    view = rows.ended("r16")
    until(lambda: [event for event in rows.events("r16") if event.ignored], 20, what="the repeated report")

    assert view.status == "COMPLETED"
    topic = rows.engine.namespace.schedule("default", "r16")
    scheduled = [SCHEDULED_TASK.decode(r.value) for r in rows.engine.records(topic)]
    assert sorted(w.reference for w in scheduled if w.workflow_id == rows.ids["r16"]) == ["a", "b"]


def test_row_17_a_failure_after_the_budget_fails_the_workflow(rows: Rows) -> None:
    view = rows.ended("r17")

    assert [task.status for task in view.tasks] == ["FAILED"]
    assert (view.status, view.workflow.reason) == ("FAILED", "disk full")
    assert view.workflow.reason_code is ReasonCode.TOTAL_TIMEOUT


@pytest.mark.parametrize("row", ["r18-retry", "r18-wf"])
def test_row_18_a_live_task_over_the_budget_times_out_and_so_does_the_workflow(rows: Rows, row: str) -> None:
    view = rows.ended(row)

    assert [task.status for task in view.tasks] == ["TIMED_OUT"]
    assert view.status == "TIMED_OUT"


def test_row_18_under_alert_only_a_live_task_over_the_budget_goes_on(rows: Rows) -> None:
    view = rows.ended("r18-alert")

    assert (view.status, view.output) == ("COMPLETED", {"done": True})
    assert rows.alerts("r18-alert") == 1


def test_row_22_optional_wins_over_time_out_wf(rows: Rows) -> None:
    view = rows.ended("r22")

    assert [(task.reference, task.status) for task in view.tasks] == [
        ("a", "COMPLETED_WITH_ERRORS"),
        ("b", "COMPLETED"),
    ]
    assert view.status == "COMPLETED"


def test_the_promises_hold_over_all_rows(rows: Rows) -> None:
    for row in rows.ids:
        rows.ended(row)
    records = promises.Records(rows.engine.namespace, rows.engine.everything())

    assert promises.terminal_never_changes(records) == []
    assert promises.one_schedule_per_hand_out(records) == []
    assert promises.no_retry_before_its_delay(records) == []
    assert promises.no_timeout_while_a_result_was_unread(records) == []
    assert promises.no_transaction_was_torn(records) == []
