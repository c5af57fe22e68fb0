"""Signs of life of a running attempt: their numbers, their end, and the automatic ones."""

import pickle
import time

import pytest

from broker_engine.errors import BadRequest
from broker_engine.model.commands import AnyCommand, ExtendLease, TaskProgressed
from broker_engine.wire.records import ScheduledTask
from broker_engine.worker import InProgress
from broker_engine.worker.signals import Heartbeats, Signals
from tests.support.roles import until
from tests.unit.worker.test_task import CONTEXT, WORK


class Sent(list[AnyCommand]):
    def take(self, _work: ScheduledTask, command: AnyCommand, _on_arrival: object = None) -> None:
        self.append(command)


def test_heartbeats_and_the_report_are_numbered_in_order() -> None:
    sent = Sent()
    signals = Signals(WORK, 7, "worker-1", sent.take)
    signals.heartbeat(None)
    signals.heartbeat(b"{}")

    assert [c.sequence for c in sent if isinstance(c, TaskProgressed)] == [1, 2]
    assert signals.end() == 3


def test_nothing_follows_the_end() -> None:
    sent = Sent()
    signals = Signals(WORK, 7, "worker-1", sent.take)
    signals.put_away(2_000, None, None)
    signals.heartbeat(None)
    signals.extend_lease()

    (only,) = sent
    assert isinstance(only, TaskProgressed)
    assert (only.callback_after_ms, only.lease) == (2_000, 7)


def test_a_long_function_is_kept_alive_by_itself() -> None:
    sent = Sent()
    signals = Signals(WORK, 7, "worker-1", sent.take)
    signals.last_at = time.monotonic() - 100
    heartbeats = Heartbeats()
    heartbeats.watch(signals, 30_000)
    heartbeats.start()
    try:
        until(lambda: sent, 5, what="a heartbeat")
    finally:
        heartbeats.close()

    assert [type(command) for command in sent] == [ExtendLease]


def test_signs_of_life_stay_behind_when_a_context_goes_to_another_process() -> None:
    signals = Signals(WORK, 7, "worker-1", Sent().take)

    assert pickle.loads(pickle.dumps(signals)) is None


def test_a_heartbeat_in_a_process_says_what_to_do() -> None:
    with pytest.raises(BadRequest, match="pool='thread'"):
        CONTEXT.heartbeat()


@pytest.mark.parametrize("seconds", [-1, 2**31])
def test_a_callback_has_a_sensible_length(seconds: float) -> None:
    with pytest.raises(BadRequest, match="callback_after_seconds must be 0 to"):
        InProgress(callback_after_seconds=seconds)
