"""Work for workers without Kafka: the gateway takes it from the queues for those that poll, and reports for them.

It is one more worker of each queue, made of the parts of the Worker SDK, with one difference: its slots are the polls
that wait at this moment (``Demand``). So a task is started when there is somebody to give it to, and whatever else
stands on the queue stays there for others. What was started for a poll that has gone meanwhile is kept a moment for the
next one, then put back.

Who started a task, for the decider, is this gateway until a worker has collected it: if the gateway dies before that,
its lost presence brings the task back. Then the worker is named in its place (a first sign of life), and the task
outlives the gateway: any other one, or this one restarted, takes its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from broker_engine.log.ports import Log
from broker_engine.model.commands import AnyCommand, TaskReported
from broker_engine.model.decision import ControlKind
from broker_engine.model.state import TaskState
from broker_engine.model.status import ReportStatus
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.commands import encode_command
from broker_engine.wire.records import Control, ScheduledTask
from broker_engine.wire.signing import Signer
from broker_engine.worker.context import TaskContext
from broker_engine.worker.controls import Controls
from broker_engine.worker.homes import Homes
from broker_engine.worker.presence import Presence, Served
from broker_engine.worker.queue_loop import QueueLoop
from broker_engine.worker.reports import Reports
from broker_engine.worker.signals import Signals
from broker_engine.worker.slots import Slots
from broker_engine.worker.task import TaskWorker
from broker_engine.worker.verdicts import Verdicts

_log = structlog.get_logger(__name__)

#: A queue without polls is left after this long.
LINGER_SECONDS = 60.0
#: What was started and is not collected goes back to its queue after this long.
KEEP_SECONDS = 2.0
#: A put-away task comes back after this: the shortest delay there is.
BACK_AT_ONCE_MS = 1
#: Tasks that are taken for polls at a time.
MAX_DEMAND = 1_000
#: Starts of one poll share a request; they are flushed.
START_LINGER_MS = 1
#: How often, and how long each time, the first of several tasks waits for the others.
GATHER_ROUNDS = 10
GATHER_SECONDS = 0.002
_SWEEP_SECONDS = 0.5
_NO_KEY = Signer(None)


class Demand(Slots):
    """As many free slots as tasks are polled for and not on their way yet."""

    def __init__(self) -> None:
        super().__init__(MAX_DEMAND)
        self._wanted = 0
        self._coming = 0
        self._ready = 0

    @property
    def is_awaiting(self) -> bool:
        """Whether something is on its way."""
        return self._coming > 0

    def want(self, change: int) -> None:
        with self._changed:
            self._wanted += change
            self._changed.notify_all()

    def arrived(self) -> None:
        """One that was on its way is here."""
        with self._changed:
            self._coming -= 1
            self._ready += 1

    def gone(self, count: int) -> None:
        """So many that were here are not any more."""
        with self._changed:
            self._ready -= count
            self._changed.notify_all()

    def room(self) -> int:
        with self._changed:
            return self._free()

    def take(self) -> None:
        with self._changed:
            self._coming += 1

    def give_back(self, *, has_run: bool = True) -> None:
        if not has_run:  # it will not come
            with self._changed:
                self._coming -= 1
                self._changed.notify_all()

    def wait_for_room(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._free() > 0, timeout)

    def wait_until_idle(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._coming == 0, timeout)

    @property
    def free(self) -> int:
        return self._free()

    @property
    def full_seconds(self) -> float:
        """Without polls the gateway is idle, not busy: it does not leave a queue to others for that."""
        return 0.0

    def _free(self) -> int:
        return min(max(self._wanted - self._coming - self._ready, 0), MAX_DEMAND)


@dataclass(slots=True, eq=False)
class Attempt:
    """A started task, waiting to be collected or with the worker that collected it."""

    work: ScheduledTask
    lease: int
    signals: Signals
    ended: Callable[[], None]
    since: float
    #: Set when it is collected.
    worker_id: str | None = None


@dataclass(slots=True, eq=False)
class _Poll:
    """A request that waits for work."""

    count: int
    wake: Callable[[], object]
    is_woken: bool = False


@dataclass(slots=True, eq=False)
class _Queue:
    """A queue that somebody polls."""

    task: TaskWorker
    demand: Demand
    served: Served
    last_poll: float
    thread: threading.Thread | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    ready: deque[Attempt] = field(default_factory=deque)
    polls: list[_Poll] = field(default_factory=list)


class Pollers:
    """Every queue that is polled through this gateway, and every task that its pollers have."""

    def __init__(self, log: Log, namespace: Namespace, partitions: int, gateway_id: str) -> None:
        self._log = log
        self._namespace = namespace
        self._gateway_id = gateway_id
        self._commands = namespace.topic(Topic.COMMANDS)
        self._writer = log.writer(client_id=gateway_id, linger_ms=START_LINGER_MS)
        self._reports = Reports(log, gateway_id, lambda: False)
        self._verdicts = Verdicts(log, namespace, partitions, gateway_id)
        self._presence = Presence(log, namespace, gateway_id, self._writer, [])
        self._controls: dict[str, Controls] = {}
        self._lock = threading.RLock()
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._in_hand: dict[str, Attempt] = {}
        #: (task type, domain, worker) to when it polled last, epoch milliseconds.
        self._polled: dict[tuple[str, str, str], int] = {}
        self._stop = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="pollers", daemon=True)

    def start(self) -> None:
        self._verdicts.start()
        self._presence.start()
        self._sweeper.start()

    def close(self) -> None:
        """Take no more work, put back what nobody has collected, and send what was reported."""
        self._stop.set()
        if self._sweeper.is_alive():
            self._sweeper.join(5.0)
        with self._lock:
            queues = list(self._queues.values())
            self._queues.clear()
        for queue in queues:
            queue.stop.set()
        for queue in queues:
            self._end(queue)
        left = self._reports.close(5.0)
        if left:
            _log.warning("gateway.reports_lost", reports=left)
        self._presence.close()
        self._verdicts.close()
        for controls in self._controls.values():
            controls.close()
        self._writer.close()

    # --- polling

    async def poll(self, domain: str, task_type: str, worker_id: str, count: int, seconds: float) -> list[Attempt]:
        """Up to ``count`` tasks: those that are there, else the first that come within ``seconds``."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        queue = await asyncio.to_thread(self._queue, domain, task_type)
        with self._lock:
            queue.last_poll = time.monotonic()
            self._polled[task_type, domain, worker_id] = time.time_ns() // 1_000_000
            found = self._collect(queue, count)
            if found or seconds <= 0:
                return found
            poll = _Poll(count, partial(loop.call_soon_threadsafe, came.set))
            queue.polls.append(poll)
            queue.demand.want(count)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(came.wait(), seconds)
            if came.is_set():
                await self._gather(queue, count)
        finally:
            with self._lock:
                queue.last_poll = time.monotonic()
                queue.polls.remove(poll)
                queue.demand.want(-count)
        with self._lock:
            return self._collect(queue, count)

    async def _gather(self, queue: _Queue, count: int) -> None:
        """Wait a moment for those that were started together with the first."""
        for _ in range(GATHER_ROUNDS):
            if not queue.demand.is_awaiting or len(queue.ready) >= count:
                return
            await asyncio.sleep(GATHER_SECONDS)

    def deliver(self, attempts: list[Attempt], worker_id: str) -> None:
        """Note who has these tasks now. Called when nothing stands between them and their worker but the network."""
        for attempt in attempts:
            attempt.worker_id = worker_id
            with self._lock:
                self._in_hand[attempt.work.task_id] = attempt
            attempt.signals.pass_on(worker_id)

    def put_back(self, attempts: list[Attempt]) -> None:
        """Nobody is there to take these after all: they go back to their queue."""
        for attempt in attempts:
            attempt.signals.put_away(BACK_AT_ONCE_MS, None, "no worker collected it")
            attempt.ended()

    def polled(self) -> dict[tuple[str, str, str], int]:
        """(task type, domain, worker) to when it polled here last, epoch milliseconds."""
        with self._lock:
            return dict(self._polled)

    # --- what workers report

    def in_hand(self, task_id: str) -> Attempt | None:
        """The task, if it was handed out here and has not ended."""
        with self._lock:
            return self._in_hand.get(task_id)

    def extend(self, attempt: Attempt) -> None:
        attempt.signals.extend_lease()

    def put_away(self, attempt: Attempt, after_ms: int, output: bytes | None, reason: str | None) -> None:
        """The worker is not done: the task comes back after a while."""
        self._forget(attempt)
        attempt.signals.put_away(max(after_ms, BACK_AT_ONCE_MS), output, reason)

    def report(
        self,
        attempt: Attempt,
        *,
        status: ReportStatus,
        worker_id: str | None,
        output: bytes | None,
        reason: str | None,
        error_code: str | None,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        """What the attempt came to; ``on_arrival`` is called when that is in the log."""
        self._forget(attempt)
        work = attempt.work
        command = TaskReported(
            key=work.workflow_id,
            operator=f"worker:{worker_id or attempt.worker_id}",
            reference=work.reference,
            task_id=work.task_id,
            hand_out=work.hand_out,
            status=status,
            lease=attempt.lease,
            sequence=attempt.signals.end(),
            worker_id=worker_id or attempt.worker_id,
            output=output,
            reason=reason,
            error_code=error_code,
        )
        self._send(work, command, on_arrival)

    def let_go(self, attempt: Attempt) -> None:
        """It is reported in another way."""
        self._forget(attempt)

    def heard(self, task: TaskState) -> None:
        """A task state was read: one that has ended, or is with somebody else, is nobody's here any more."""
        attempt = self._in_hand.get(task.task_id)
        if attempt is not None and (task.is_terminal or task.hand_out > attempt.work.hand_out):
            self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        with self._lock:
            if self._in_hand.get(attempt.work.task_id) is attempt:
                del self._in_hand[attempt.work.task_id]
        attempt.ended()

    # --- queues

    def _queue(self, domain: str, task_type: str) -> _Queue:
        """The queue, joined if it is not yet."""
        with self._lock:
            queue = self._queues.get((domain, task_type))
            if queue is None:
                task = TaskWorker(
                    name=task_type, function=_unused, domain=domain, concurrency=MAX_DEMAND, _bind=_unused
                )
                demand = Demand()
                queue = _Queue(task, demand, Served(task, demand), last_poll=time.monotonic())
                self._queues[domain, task_type] = queue
                self._join(queue)
            return queue

    def _join(self, queue: _Queue) -> None:
        task = queue.task
        controls = self._controls.get(task.domain)
        if controls is None:
            controls = self._controls[task.domain] = Controls(self._log, self._namespace, [task.domain])
            controls.start()

        def run(_task: TaskWorker, work: ScheduledTask, context: TaskContext, ended: Callable[[], None]) -> None:
            self._started(queue, controls, work, context, ended)

        def serve(task: TaskWorker, shared: bool) -> threading.Thread:
            loop = QueueLoop(
                self._log,
                self._namespace,
                task,
                queue.demand,
                worker_id=self._gateway_id,
                writer=self._writer,
                verdicts=self._verdicts,
                presence=self._presence,
                controls=controls,
                run=run,
                is_shared=shared,
            )
            return threading.Thread(target=loop.run, args=(queue.stop,), name=f"queue {task.name}", daemon=True)

        homes = Homes(self._log, self._namespace, [task], serve)
        queue.thread = threading.Thread(target=homes.run, args=(queue.stop,), name=f"polled {task.name}", daemon=True)
        queue.thread.start()
        self._presence.tell(queue.served)
        _log.info("gateway.queue_joined", domain=task.domain, task_type=task.name)

    def _started(
        self, queue: _Queue, controls: Controls, work: ScheduledTask, context: TaskContext, ended: Callable[[], None]
    ) -> None:
        """A start is in the log: give the task to a poll, or keep it for the next one."""
        queue.demand.arrived()
        signals = Signals(work, context.lease, self._gateway_id, self._send)

        def done() -> None:
            controls.forget(work.task_id, work.hand_out)
            ended()

        attempt = Attempt(work, context.lease, signals, done, time.monotonic())
        with self._lock:
            queue.ready.append(attempt)
            is_late = queue.stop.is_set()
        controls.listen(work.task_id, work.hand_out, lambda told: self._told(queue, attempt, told))
        with self._lock:
            poll = next((poll for poll in queue.polls if not poll.is_woken), None)
            if poll is not None:
                poll.is_woken = True
        if poll is not None:
            poll.wake()
        elif is_late:
            self._put_back_ready(queue, older_than=time.monotonic())

    def _told(self, queue: _Queue, attempt: Attempt, told: Control) -> None:
        """Somebody wants the task to stop. A worker that speaks HTTP cannot hear that: what it has ends here at once,
        and its result will be late."""
        with self._lock:
            is_here = attempt in queue.ready
            if is_here:
                queue.ready.remove(attempt)
                queue.demand.gone(1)
        if told.kind is ControlKind.CANCEL:
            self.report(
                attempt,
                status=ReportStatus.CANCELED,
                worker_id=attempt.worker_id,
                output=None,
                reason=told.reason or None,
                error_code=None,
            )
        elif told.kind is ControlKind.PAUSE and is_here:
            attempt.signals.pause()
            attempt.ended()
        elif told.kind is ControlKind.SUPERSEDED:
            self._forget(attempt)

    def _collect(self, queue: _Queue, count: int) -> list[Attempt]:
        found = [queue.ready.popleft() for _ in range(min(count, len(queue.ready)))]
        queue.demand.gone(len(found))
        return found

    def _put_back_ready(self, queue: _Queue, *, older_than: float) -> None:
        with self._lock:
            stale = [attempt for attempt in queue.ready if attempt.since <= older_than]
            for attempt in stale:
                queue.ready.remove(attempt)
            queue.demand.gone(len(stale))
        self.put_back(stale)

    def _sweep(self) -> None:
        while not self._stop.wait(_SWEEP_SECONDS):
            now = time.monotonic()
            with self._lock:
                queues = list(self._queues.items())
            for key, queue in queues:
                self._put_back_ready(queue, older_than=now - KEEP_SECONDS)
                with self._lock:
                    is_left = not queue.polls and now - queue.last_poll > LINGER_SECONDS
                    if is_left:
                        del self._queues[key]
                if is_left:
                    queue.stop.set()
                    self._end(queue)
                    _log.info("gateway.queue_left", domain=queue.task.domain, task_type=queue.task.name)

    def _end(self, queue: _Queue) -> None:
        """Leave the group, then put back what nobody has collected."""
        for poll in list(queue.polls):
            poll.wake()
        if queue.thread is not None:
            queue.thread.join(10.0)
        self._put_back_ready(queue, older_than=time.monotonic())
        self._presence.leave(queue.served)

    def _send(self, work: ScheduledTask, command: AnyCommand, on_arrival: Callable[[], None] | None = None) -> None:
        value = encode_command(command, _NO_KEY, token=work.token or b"")
        self._reports.send(self._commands, work.partition, work.workflow_id.encode(), value, on_arrival)


def _unused(*_args: Any, **_kwargs: Any) -> Any:
    raise AssertionError("the gateway runs no functions")
