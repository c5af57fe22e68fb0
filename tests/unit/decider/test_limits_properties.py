"""Any requests, starts, releases and changes of the limits in any order: what always holds of the limiter.

The machine keeps its own books of who was handed out and counts by them, not by the limiter's state.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker_engine.decider.limits import LimitState, restore
from broker_engine.model.slots import Entry
from tests.builders import FIXED
from tests.support.limits import Limiter

WINDOW_MS = 5_000
RATE = 3
resources = st.sampled_from([None, None, "f1", "f2"])
types = st.sampled_from(["encode", "mail"])


class Limits(RuleBasedStateMachine):
    """Two task types, one with a rate, both with limits that change, and locks and tenants across them."""

    @initialize(encode=st.integers(1, 3), mail=st.integers(0, 3), cap=st.integers(0, 3), tenant=st.integers(0, 2))
    def begin(self, encode: int, mail: int, cap: int, tenant: int) -> None:
        rate = {"rate_limit_per_frequency": RATE, "rate_limit_frequency_in_seconds": WINDOW_MS // 1_000}
        self.limiter = Limiter(
            encode={"concurrent_exec_limit": encode, **rate},
            mail={"concurrent_exec_limit": mail},
            global_cap=cap,
            tenant_cap=tenant,
        )
        self.limiter.define("encode", concurrent_exec_limit=encode, **rate)
        self.number = 0
        #: What a reader of the compacted topic would keep.
        self.stored: dict[str, Entry] = {}
        #: Own books: entries that were handed out and are not given back.
        self.out: dict[str, Entry] = {}
        self.unstarted: list[str] = []
        self.waiting: list[str] = []
        self.starts: list[int] = []

    def tell(self, ask: Any, *args: Any, **fields: Any) -> None:
        ask(*args, **fields)
        decision = self.limiter.decision
        for key in decision.changed:
            entry = decision.state.entries.get(key)
            if entry is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = entry
        for entry in decision.grants:
            self.waiting.remove(entry.task_id)
            self.out[entry.task_id] = entry
            self.unstarted.append(entry.task_id)
            self._check_grant(entry)

    def _check_grant(self, entry: Entry) -> None:
        """A grant fits every limit it meets, counted by the books."""
        for need in self.limiter.rules.needs(entry.line):
            if need.window_ms:
                continue
            held = [other for other in self.out.values() if need in self.limiter.rules.needs(other.line)]
            assert len(held) <= need.capacity, need

    @rule(task_type=types, priority=st.sampled_from([0, 0, 7, 99]), resource=resources, tenant=st.sampled_from("xy"))
    def request(self, task_type: str, priority: int, resource: str | None, tenant: str) -> None:
        self.number += 1
        name = f"t{self.number}"
        self.waiting.append(name)
        self.tell(self.limiter.request, name, task_type=task_type, priority=priority, resource=resource, tenant=tenant)

    @precondition(lambda self: self.unstarted)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.unstarted))
        self.unstarted.remove(name)
        if self.out[name].line.task_type == "encode":
            self.starts.append(self.limiter.now_ms)
        self.tell(self.limiter.start, name)

    @precondition(lambda self: self.out or self.waiting)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self._release(data.draw(st.sampled_from([*self.out, *self.waiting])))

    def _release(self, name: str) -> None:
        self.out.pop(name, None)
        for names in (self.unstarted, self.waiting):
            if name in names:
                names.remove(name)
        self.tell(self.limiter.release, name)

    @rule(milliseconds=st.sampled_from([1, 500, WINDOW_MS - 1, WINDOW_MS, 40_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.limiter.later(milliseconds)
        self.tell(self.limiter.tick)

    @rule(limit=st.integers(0, 4))
    def redefine(self, limit: int) -> None:
        self.limiter.define("mail", concurrent_exec_limit=limit)
        self.tell(self.limiter.tick)

    @invariant()
    def no_window_holds_more_starts_than_allowed(self) -> None:
        for index, start in enumerate(self.starts):
            assert index + 1 - bisect_right(self.starts, start - WINDOW_MS) <= RATE

    @invariant()
    def restore_equals_live(self) -> None:
        assert restore(self.stored.values()) == self.limiter.state

    def teardown(self) -> None:
        """Everybody gets a turn when those who have one end, and nothing is left behind."""
        if not hasattr(self, "limiter"):
            return
        for _ in range(10 * self.number + 10):
            for name in [*self.unstarted]:
                self.unstarted.remove(name)
                self.tell(self.limiter.start, name)
            for name in [*self.out]:
                self._release(name)
            due_ms = self.limiter.next_due_ms
            if due_ms is not None:
                self.limiter.later(max(0, due_ms - self.limiter.now_ms))
            self.tell(self.limiter.tick)
            if not self.waiting and not self.out:
                break
        assert not self.waiting
        self.limiter.later(WINDOW_MS)
        self.tell(self.limiter.tick)
        assert self.limiter.state == LimitState()


TestLimits = Limits.TestCase
TestLimits.settings = settings(FIXED, stateful_step_count=40)
