"""What a running attempt tells the decider before it ends: heartbeats, extended leases, its way out.

Each ``Signals`` belongs to one attempt in hand. Numbers are given and records handed over under one lock, so that the
log holds them in the order of their numbers and nothing follows the report that ends the attempt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from broker_engine.errors import BadRequest, NoAnswer
from broker_engine.model.commands import AnyCommand, AttemptPaused, ExtendLease, TaskProgressed, TaskStep
from broker_engine.model.limits import MAX_PAYLOAD_BYTES
from broker_engine.model.status import StepStatus
from broker_engine.wire.records import ScheduledTask

#: An automatic heartbeat goes out after this part of the response time-out without a sign of life, ...
BEATS_PER_TIMEOUT = 3
#: ... but not more often than this.
MIN_BEAT_SECONDS = 1.0
_LOOK_SECONDS = 0.25
#: Progress and checkpoints are stored at most this often; the last ones with the end of the step.
PROGRESS_SECONDS = 1.0
#: How long the end of a step may take to get into the log.
ARRIVE_SECONDS = 30.0


class Send(Protocol):
    """Hands a command over; ``on_arrival`` is called when it is in the log."""

    def __call__(
        self, work: ScheduledTask, command: AnyCommand, on_arrival: Callable[[], None] | None = None
    ) -> None: ...


class Signals:
    """The signs of life of one attempt; safe to use from any thread."""

    def __init__(self, work: ScheduledTask, lease: int, worker_id: str, send: Send) -> None:
        self._work = work
        self._lease = lease
        self._worker_id = worker_id
        self._send = send
        self._lock = threading.Lock()
        self._sequence = 0
        self._has_ended = False
        #: Progress that waits for the next sign of life.
        self._untold: dict[str, Any] = {}
        self._progress_at = 0.0
        self.last_at = time.monotonic()

    def __reduce__(self) -> Any:  # the protocol of pickle
        """In another process there is no connection to send with."""
        return (type(None), ())

    def heartbeat(self, output: bytes | None) -> None:
        """Restart the response clock; ``output`` is merged by key into the task's."""
        if output is not None and len(output) > MAX_PAYLOAD_BYTES:
            raise BadRequest(
                f"the output of a heartbeat has {len(output)} bytes, the limit is {MAX_PAYLOAD_BYTES}: store it "
                f"elsewhere and pass a reference"
            )
        with self._lock:
            if not self._has_ended:
                self._sequence += 1
                progress = TaskProgressed(
                    **self._about(), sequence=self._sequence, worker_id=self._worker_id, output=output
                )
                self._say(progress)

    def pass_on(self, worker_id: str) -> None:
        """Name the worker that has the task from now on, with a sign of life."""
        with self._lock:
            self._worker_id = worker_id
        self.heartbeat(None)

    def step(
        self,
        step: str,
        status: StepStatus,
        *,
        result: bytes | None = None,
        input_size: int = 0,
        error_code: str | None = None,
        reason: str | None = None,
        must_arrive: bool = False,
    ) -> None:
        """Tell that a step began or ended; with ``must_arrive`` wait until that is in the log.

        Raises:
            NoAnswer: it did not get there in time.
        """
        arrived = threading.Event()
        with self._lock:
            if self._has_ended:
                return
            self._say_progress()
            self._sequence += 1
            told = TaskStep(
                **self._about(),
                step=step,
                status=status,
                sequence=self._sequence,
                worker_id=self._worker_id,
                result=result,
                input_size=input_size,
                error_code=error_code,
                reason=reason,
            )
            self.last_at = time.monotonic()
            self._send(self._work, told, arrived.set if must_arrive else None)
        if must_arrive and not arrived.wait(ARRIVE_SECONDS):
            raise NoAnswer(f"step {step} could not be stored within {ARRIVE_SECONDS:g} s: is the broker reachable?")

    def progress(self, **told: Any) -> None:
        """Store how far the work is: at once, or with the next sign of life when one went out a moment ago."""
        with self._lock:
            if self._has_ended:
                return
            self._untold |= told
            if time.monotonic() - self._progress_at >= PROGRESS_SECONDS:
                self._say_progress()

    def _say_progress(self) -> None:
        if self._untold:
            told, self._untold = self._untold, {}
            self._progress_at = time.monotonic()
            self._sequence += 1
            self._say(TaskProgressed(**self._about(), sequence=self._sequence, worker_id=self._worker_id, **told))

    def extend_lease(self) -> None:
        """Restart the response clock."""
        with self._lock:
            if not self._has_ended:
                self._say(ExtendLease(**self._about()))

    def put_away(self, after_ms: int, output: bytes | None, reason: str | None) -> None:
        """End this hand-out; the task comes back after its delay."""
        sequence = self.end()
        self._send(
            self._work,
            TaskProgressed(
                **self._about(),
                callback_after_ms=after_ms,
                sequence=sequence,
                worker_id=self._worker_id,
                output=output,
                reason=reason,
            ),
        )

    def pause(self) -> None:
        """Tell that the function has stopped at a safe point, and say nothing more."""
        sequence = self.end()
        self._send(self._work, AttemptPaused(**self._about(), sequence=sequence, worker_id=self._worker_id))

    def end(self) -> int:
        """Say nothing more; the number of the last report."""
        with self._lock:
            if not self._has_ended:
                self._say_progress()
            self._has_ended = True
            self._sequence += 1
            return self._sequence

    def _say(self, command: AnyCommand) -> None:
        self.last_at = time.monotonic()
        self._send(self._work, command)

    def _about(self) -> Mapping[str, Any]:
        work = self._work
        return {
            "key": work.workflow_id,
            "operator": f"worker:{self._worker_id}",
            "reference": work.reference,
            "task_id": work.task_id,
            "hand_out": work.hand_out,
            "lease": self._lease,
        }


class Heartbeats:
    """Extends the leases of attempts that run long, in a thread: every third of their response time-out."""

    def __init__(self) -> None:
        self._running: dict[Signals, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, signals: Signals, response_timeout_ms: int) -> None:
        """Keep this attempt alive until it is forgotten; without a response time-out there is nothing to do."""
        if response_timeout_ms > 0:
            self._running[signals] = max(response_timeout_ms / 1_000 / BEATS_PER_TIMEOUT, MIN_BEAT_SECONDS)

    def forget(self, signals: Signals) -> None:
        self._running.pop(signals, None)

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            now = time.monotonic()
            for signals, interval in tuple(self._running.items()):
                if now - signals.last_at >= interval:
                    signals.extend_lease()
