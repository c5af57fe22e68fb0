"""A limiter driven by values, one command after the other."""

from __future__ import annotations

from typing import Any

from broker_engine.decider.limits import LimitDecision, LimitRules, LimitState, decide_limits, next_due_ms
from broker_engine.model.caps import EVERY_TENANT, Caps
from broker_engine.model.definitions import TaskDef
from broker_engine.model.slots import LimitCommand, LimitTick, Line, ReleaseSlot, RequestSlot, SlotStarted
from tests.builders import START_MS, a_task_def


class Limiter:
    """Keywords are task types with the fields of their definitions, or caps. Every teller returns the limiter."""

    def __init__(self, *, global_cap: int = 0, tenant_cap: int = 0, **definitions: dict[str, Any]) -> None:
        self.definitions: dict[str, TaskDef] = {name: a_task_def(name, **given) for name, given in definitions.items()}
        tenants = {EVERY_TENANT: tenant_cap} if tenant_cap else {}
        self.rules = LimitRules(self.definitions.get, Caps(global_cap, tenants))
        self.state = LimitState()
        self.now_ms = START_MS
        #: Task ids, in the order in which they were handed out or asked about.
        self.granted: list[str] = []
        self.expired: list[str] = []
        self.decision = LimitDecision(self.state)

    def tell(self, command: LimitCommand) -> Limiter:
        self.decision = decide_limits(self.state, command, self.now_ms, self.rules)
        self.state = self.decision.state
        self.granted += [entry.task_id for entry in self.decision.grants]
        self.expired += [entry.task_id for entry in self.decision.expired]
        return self

    def request(
        self,
        *tasks: str,
        hand_out: int = 1,
        priority: int = 0,
        task_type: str = "encode",
        domain: str = "default",
        tenant: str | None = None,
        resource: str | None = None,
        asked_at_ms: int | None = None,
    ) -> Limiter:
        line = Line(task_type, domain, tenant, resource)
        at_ms = self.now_ms if asked_at_ms is None else asked_at_ms
        for task in tasks:
            self.tell(RequestSlot(task, hand_out, f"workflow of {task}", task, line, priority, at_ms))
        return self

    def start(self, *tasks: str, hand_out: int = 1) -> Limiter:
        for task in tasks:
            self.tell(SlotStarted(task, hand_out, self.now_ms))
        return self

    def release(self, *tasks: str, hand_out: int = 1) -> Limiter:
        for task in tasks:
            self.tell(ReleaseSlot(task, hand_out))
        return self

    def tick(self) -> Limiter:
        return self.tell(LimitTick())

    def later(self, milliseconds: int) -> Limiter:
        self.now_ms += milliseconds
        return self

    def cap(self, everything: int = 0, **tenants: int) -> Limiter:
        self.rules = self.rules._replace(caps=Caps(everything, tenants))
        return self

    def define(self, name: str = "encode", **fields: Any) -> Limiter:
        self.definitions[name] = a_task_def(name, **fields)
        return self

    @property
    def next_due_ms(self) -> int | None:
        return next_due_ms(self.state, self.now_ms, self.rules)
