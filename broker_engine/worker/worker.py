"""A worker process: one loop per queue, one pool for the functions, one producer for everything it reports."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import structlog

from broker_engine.errors import BadRequest
from broker_engine.log.namespaces import read_record
from broker_engine.log.ports import Log
from broker_engine.model.commands import AnyCommand, TaskReported
from broker_engine.model.limits import MAX_PAYLOAD_BYTES
from broker_engine.model.status import ReportStatus
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.commands import encode_command
from broker_engine.wire.records import ScheduledTask
from broker_engine.wire.signing import Signer
from broker_engine.worker.client import Client
from broker_engine.worker.context import (
    InProgress,
    Superseded,
    TaskCanceled,
    TaskContext,
    TaskFailed,
    TaskFailedForGood,
    TaskPaused,
)
from broker_engine.worker.controls import Controls
from broker_engine.worker.homes import Homes
from broker_engine.worker.pools import Pools
from broker_engine.worker.presence import Presence, Served
from broker_engine.worker.queue_loop import QueueLoop
from broker_engine.worker.reports import Reports
from broker_engine.worker.secrets import Resolver, resolver
from broker_engine.worker.setups import Beginning
from broker_engine.worker.signals import Heartbeats, Signals
from broker_engine.worker.slots import Slots
from broker_engine.worker.task import TaskWorker, output_bytes
from broker_engine.worker.verdicts import Verdicts

_log = structlog.get_logger(__name__)

#: Starts of one poll share a request; they are flushed.
START_LINGER_MS = 1
#: How long a stopping worker lets running tasks finish.
GRACE_SECONDS = 30.0
_NO_KEY = Signer(None)


class Worker:
    """Runs the given tasks until stopped.

    >>> Worker(log, [greet, charge]).run()          # doctest: +SKIP

    Args:
        log: the cluster.
        tasks: functions made by ``@task``.
        namespace: the engine's namespace.
        worker_id: unique among all workers; made of host and process by default.
        grace_seconds: how long ``stop`` lets running tasks finish.
        client: registers the definitions given to ``@task`` before work is taken.
        secrets: the values of names in ``runtimeMetadata``, or a function that gives them; by default environment
            variables ``BROKER_ENGINE_SECRET_<name>``.
    """

    def __init__(
        self,
        log: Log,
        tasks: Sequence[TaskWorker],
        *,
        namespace: Namespace | None = None,
        worker_id: str | None = None,
        grace_seconds: float = GRACE_SECONDS,
        client: Client | None = None,
        secrets: Mapping[str, str] | Resolver | None = None,
    ) -> None:
        if not tasks:
            raise BadRequest("a worker needs at least one task")
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self._log = log
        self._namespace = namespace or Namespace()
        self._commands = self._namespace.topic(Topic.COMMANDS)
        self._grace_seconds = grace_seconds
        self._served = [Served(task, Slots(task.concurrency)) for task in tasks]
        self._pools = Pools(list(tasks))
        self._client = client
        self._resolve_secret = resolver(secrets)
        self._stop = threading.Event()
        self._controls: Controls | None = None
        #: Starts and presence. Reports have a producer of their own, so that the flush of a start does not hurry them.
        self._writer = log.writer(client_id=self.worker_id, linger_ms=START_LINGER_MS)
        self._reports = Reports(log, self.worker_id, self._pools.has_backlog)
        self._heartbeats = Heartbeats()
        self.completed = self.failed = 0

    def stop(self) -> None:
        """Take no more work; ``run`` returns when what runs has ended, or after the grace time."""
        self._stop.set()

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Serve in a thread for the length of a ``with`` block."""
        thread = threading.Thread(target=self.run, name="worker")
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join()

    def run(self) -> None:
        """Serve until stopped.

        Raises:
            BadRequest: the namespace does not exist within a minute.
        """
        partitions = self._await_namespace()
        if partitions is None:
            return
        for task, _ in self._served:
            if self._client is not None and task.definition is not None:
                self._client.register_task(task.definition)
        verdicts = Verdicts(self._log, self._namespace, partitions, self.worker_id)
        presence = Presence(self._log, self._namespace, self.worker_id, self._writer, self._served)
        controls = self._controls = Controls(self._log, self._namespace, [task.domain for task, _ in self._served])
        slots = {(task.domain, task.name): slots for task, slots in self._served}

        def serve(task: TaskWorker, shared: bool) -> threading.Thread:
            loop = QueueLoop(
                self._log,
                self._namespace,
                task,
                slots[task.domain, task.name],
                worker_id=self.worker_id,
                writer=self._writer,
                verdicts=verdicts,
                presence=presence,
                controls=controls,
                run=self._run_task,
                is_shared=shared,
            )
            return threading.Thread(target=loop.run, args=(self._stop,), name=f"queue {task.name}")

        verdicts.start()
        presence.start()
        controls.start()
        self._heartbeats.start()
        _log.info("worker.started", worker_id=self.worker_id, tasks=[task.name for task, _ in self._served])
        Homes(self._log, self._namespace, [task for task, _ in self._served], serve).run(self._stop)
        self._drain()
        self._heartbeats.close()
        left = self._reports.close(5.0)
        if left:
            _log.warning("worker.reports_lost", reports=left)
        presence.close()
        verdicts.close()
        controls.close()
        self._pools.close()
        self._writer.close()
        _log.info("worker.stopped", worker_id=self.worker_id, completed=self.completed, failed=self.failed)

    def _await_namespace(self) -> int | None:
        deadline = time.monotonic() + 60
        while not self._stop.is_set():
            record = read_record(self._log, self._namespace)
            if record is not None:
                return record.partitions
            if time.monotonic() > deadline:
                raise BadRequest(f"there is no namespace {self._namespace.name} on this cluster: start a decider")
            self._stop.wait(0.5)
        return None

    def _drain(self) -> None:
        """Let running tasks end. What does not is left to its response time-out."""
        deadline = time.monotonic() + self._grace_seconds
        for task, slots in self._served:
            while not slots.wait_until_idle(0.02):
                if time.monotonic() > deadline:
                    _log.warning("worker.abandons", task=task.name, running=task.concurrency - slots.free)
                    break

    def _run_task(self, task: TaskWorker, work: ScheduledTask, context: TaskContext, ended: Callable[[], None]) -> None:
        signals = context._signals = Signals(work, context.lease, self.worker_id, self._send)
        if self._controls is not None:
            self._controls.listen(work.task_id, work.hand_out, context._hear)
        if task.heartbeat:
            self._heartbeats.watch(signals, work.response_timeout_ms)

        def done(result: Any) -> None:
            self._heartbeats.forget(signals)
            context.remove_folder()
            if self._controls is not None:
                self._controls.forget(work.task_id, work.hand_out)
            try:
                self._report(work, context, result)
            finally:
                ended()

        beginning = Beginning(task, work, context, self._resolve_secret)
        self._pools.submit(task, beginning, done, priority=work.priority)

    def _report(self, work: ScheduledTask, context: TaskContext, result: Any) -> None:
        if isinstance(result, Superseded):
            _log.info("worker.superseded", task_id=work.task_id)
            return
        if isinstance(result, TaskPaused) and context._told is not None:
            assert context._signals is not None, "it was given when the task began"
            context._signals.pause()
            _log.info("worker.task_paused", task_id=work.task_id)
            return
        if isinstance(result, InProgress):
            try:
                output = None if result.output is None else output_bytes(result.output)
            except TaskFailedForGood as error:
                result = error
            else:
                assert context._signals is not None, "it was given when the task began"
                after_ms = max(int(result.callback_after_seconds * 1_000), 1)
                context._signals.put_away(after_ms, output, result.reason)
                return
        report = _outcome(work, context, result, self.worker_id)
        if report.status is ReportStatus.COMPLETED:
            self.completed += 1
        else:
            self.failed += 1
            _log.info("worker.task_failed", task_id=work.task_id, status=report.status, reason=report.reason)
        self._send(work, report)

    def _send(self, work: ScheduledTask, command: AnyCommand, on_arrival: Callable[[], None] | None = None) -> None:
        value = encode_command(command, _NO_KEY, token=work.token or b"")
        self._reports.send(self._commands, work.partition, work.workflow_id.encode(), value, on_arrival)


def _outcome(work: ScheduledTask, context: TaskContext, result: Any, worker_id: str) -> TaskReported:
    """What a function returned or raised, as a report."""
    status, output, reason, code = ReportStatus.COMPLETED, None, None, None
    try:
        if isinstance(result, BaseException):
            raise result
        output = output_bytes(result)
        if len(output) > MAX_PAYLOAD_BYTES:
            raise TaskFailedForGood(
                f"the output has {len(output)} bytes, the limit is {MAX_PAYLOAD_BYTES}: store it elsewhere and return "
                f"a reference",
                code="PAYLOAD_TOO_LARGE",
            )
    except TaskCanceled as error:
        status, reason = ReportStatus.CANCELED, str(error)
    except TaskFailed as error:
        is_final = isinstance(error, TaskFailedForGood)
        status = ReportStatus.FAILED_WITH_TERMINAL_ERROR if is_final else ReportStatus.FAILED
        output = output_bytes(error.output) if error.output is not None else None
        reason, code = str(error), error.code or type(error).__name__
    except BaseException as error:  # a user's function may raise anything
        status, reason, code = ReportStatus.FAILED, f"{type(error).__name__}: {error}", type(error).__name__
        _log.debug("worker.task_raised", task_id=work.task_id, exc_info=error)
    return TaskReported(
        key=work.workflow_id,
        operator=f"worker:{worker_id}",
        reference=work.reference,
        task_id=work.task_id,
        hand_out=work.hand_out,
        status=status,
        lease=context.lease,
        sequence=context._signals.end() if context._signals is not None else 1,
        worker_id=worker_id,
        output=output,
        reason=reason[:2_000] if reason else None,
        error_code=code,
    )
