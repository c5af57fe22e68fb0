"""Processes of an in-memory engine that die at a given moment."""

from __future__ import annotations

from broker_engine.log.memory import Crashed
from broker_engine.testing import Engine, Node


def crash(engine: Engine, moment: str) -> Node:
    """The one node dies at its next commit: ``before`` (offsets pending) or ``after`` it has happened."""
    (node,) = engine.nodes

    def die(_transactional_id: str) -> None:
        engine.log.before_commit = engine.log.on_commit = None
        raise Crashed

    if moment == "before":
        engine.log.before_commit = die
    else:
        engine.log.on_commit = die
    for _ in range(5):
        node.step()
    assert not node.is_up
    node.bury()
    return node
