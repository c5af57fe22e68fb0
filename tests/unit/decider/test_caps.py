"""Caps: so many tasks in progress altogether, of one tenant, or in one domain."""

from __future__ import annotations

import pytest

from broker_engine.decider.limit_places import standing
from broker_engine.decider.registry import decide_definition
from broker_engine.model.caps import EVERY_TENANT, NO_CAPS, Cap, Caps, cap_key, read_cap, together
from broker_engine.model.commands import ClearCap, SetCap
from broker_engine.model.decision import Answer, Decision, TellLimiter, WriteDefinition
from broker_engine.model.slots import Line, RequestSlot
from broker_engine.model.status import WaitingFor
from tests.builders import START_MS, Definitions, Story, a_context, asked
from tests.support.limits import Limiter

ACME = cap_key(tenant="acme")


def a_cap(key: str, limit: int = 1) -> Cap:
    return Cap(key, limit, "user:ann", START_MS)


def put(key: str, document: bytes = b'{"limit":3}') -> Decision:
    return decide_definition(SetCap(key=key, document=document, operator="user:ann", **asked()), a_context(START_MS))


def answer_of(decision: Decision) -> Answer:
    (answer,) = (output for output in decision.outputs if isinstance(output, Answer))
    return answer


@pytest.mark.parametrize("key", [cap_key(), ACME, cap_key(domain="eu"), cap_key(tenant=EVERY_TENANT)])
def test_a_cap_is_stored_with_who_and_when(key: str) -> None:
    decision = put(key)

    (write,) = (output for output in decision.outputs if isinstance(output, WriteDefinition))
    assert (write.kind, read_cap(key, write.document or b"")) == ("cap", Cap(key, 3, "user:ann", START_MS))
    assert answer_of(decision).status == 200


@pytest.mark.parametrize("document", [b'{"limit":0}', b'{"limit":-1}', b'{"limit":"3"}', b'{"limit":true}', b"{}"])
def test_a_limit_that_is_none_is_refused_with_what_is_allowed(document: bytes) -> None:
    answer = answer_of(put(ACME, document))

    assert answer.status == 400
    assert "limit must be a whole number from 1 to" in answer.message


@pytest.mark.parametrize("key", ["", "tenant:", "workflow:film", "everything"])
def test_a_key_that_names_no_cap_is_refused(key: str) -> None:
    assert answer_of(put(key)).status == 400


def test_clearing_what_is_not_capped_is_not_found() -> None:
    assert answer_of(decide_definition(ClearCap(key=ACME, **asked()), a_context())).status == 404


def test_clearing_removes_it() -> None:
    context = a_context(definitions=Definitions(capped={ACME: a_cap(ACME)}))
    decision = decide_definition(ClearCap(key=ACME, **asked()), context)

    assert WriteDefinition(kind="cap", key=ACME, document=None) in decision.outputs


def test_the_cap_of_every_tenant_gives_way_to_a_tenant_s_own() -> None:
    caps = together([a_cap(cap_key(tenant=EVERY_TENANT), 2), a_cap(ACME, 7)])

    assert (caps.of_tenant("acme"), caps.of_tenant("other"), caps.of_tenant(None)) == (7, 2, 0)


def test_no_caps_are_one_value() -> None:
    """It is compared by identity for every task."""
    assert together([]) is NO_CAPS


@pytest.mark.parametrize(
    ("key", "is_held"),
    [
        (cap_key(), True),
        (ACME, True),
        (cap_key(tenant=EVERY_TENANT), True),
        (cap_key(domain="default"), True),
        (cap_key(tenant="other"), False),
        (cap_key(domain="eu"), False),
    ],
)
def test_a_plain_task_asks_the_limiter_when_a_cap_counts_it(key: str, is_held: bool) -> None:
    story = Story("a")
    story.definitions.capped[key] = a_cap(key)
    story.start(tenant="acme")

    asks = [type(told.slot) for told in story.outputs(TellLimiter)]
    assert (story.task.waiting_for is WaitingFor.SLOT, asks) == (is_held, [RequestSlot] if is_held else [])
    assert story.task.hand_out == (0 if is_held else 1)


def test_limits_are_met_in_the_fixed_order() -> None:
    limiter = Limiter(encode={"concurrent_exec_limit": 1, "rate_limit_per_frequency": 1})
    rules = limiter.rules._replace(caps=Caps(1, {"acme": 1}, {"eu": 1}))

    needs = [need.key for need in rules.needs(Line("encode", "eu", "acme", "f"))]
    assert needs == ["lock f", "tenant acme", "domain eu", "all tasks", "type encode", "rate encode"]


def test_a_waiter_names_the_first_limit_that_is_full() -> None:
    limiter = Limiter(encode={"concurrent_exec_limit": 2}).cap(3, acme=1)
    limiter.request("a", "b", tenant="acme").request("c").request("d")
    places = [standing(limiter.state, task, limiter.now_ms, limiter.rules) for task in ("b", "d")]

    assert [place and place.limit and place.limit.key for place in places] == ["tenant acme", "type encode"]


def test_a_raised_cap_lets_waiters_in_and_a_lowered_one_lets_what_runs_run() -> None:
    limiter = Limiter(encode={}).cap(1).request("a", "b", "c", "d")
    assert limiter.granted == ["a"]
    assert limiter.cap(3).tick().granted == ["a", "b", "c"]

    limiter.start("a", "b", "c").cap(2).release("a")
    assert limiter.granted == ["a", "b", "c"]
    assert limiter.release("b").granted == ["a", "b", "c", "d"]


def test_a_removed_cap_lets_everybody_in() -> None:
    assert Limiter(encode={}).cap(1).request("a", "b", "c").cap().tick().granted == ["a", "b", "c"]


def test_the_cap_of_one_tenant_holds_nobody_else_back() -> None:
    limiter = Limiter(encode={}).cap(acme=1).request("a", "b", tenant="acme").request("c", tenant="x").request("d")

    assert limiter.granted == ["a", "c", "d"]
