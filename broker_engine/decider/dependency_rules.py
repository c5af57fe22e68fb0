"""What must be in a list whose steps say what they depend on: names of the list, and no circle."""

from __future__ import annotations

from collections.abc import Mapping

from broker_engine.errors import Violation
from broker_engine.model.definitions import Json


def violations(listed: list[Json], path: str) -> list[Violation]:
    """What is wrong with the dependencies of one list: unknown names, and circles."""
    known = {step.get("taskReferenceName"): number for number, step in enumerate(listed) if isinstance(step, Mapping)}
    found, edges = [], dict[str, list[str]]()
    for number, step in enumerate(listed):
        named = step.get("dependsOn") if isinstance(step, Mapping) else None
        if not isinstance(named, list):
            continue
        seen: set[str] = set()
        for place, name in enumerate(named):
            at = f"{path}[{number}].dependsOn[{place}]"
            if name not in known:
                there = ", ".join(str(other) for other in list(known)[:50])
                message = f"names no task of its list; there are {there}"
                found.append(Violation(path=at, message=message, invalid_value=name))
            elif name in seen:
                found.append(Violation(path=at, message="is named twice", invalid_value=name))
            else:
                edges.setdefault(str(step.get("taskReferenceName")), []).append(name)
            seen.add(name if isinstance(name, str) else "")
    for number, step in enumerate(listed):
        if edges and isinstance(step, Mapping) and step.get("type") == "EXCLUSIVE_JOIN" and not step.get("dependsOn"):
            message = "is required by an EXCLUSIVE_JOIN in a list with dependencies: it takes what has run by then"
            found.append(Violation(path=f"{path}[{number}].dependsOn", message=message, invalid_value=None))
    circle = _circle(edges)
    if circle is not None:
        at = f"{path}[{known[circle[0]]}].dependsOn"
        message = f"closes a circle: {' -> '.join(circle)}"
        found.append(Violation(path=at, message=message, invalid_value=circle[1]))
    return found


def _circle(edges: Mapping[str, list[str]]) -> list[str] | None:
    """A walk along the edges that comes back to where it began."""
    done: set[str] = set()
    for start in edges:
        way: list[str] = []
        stack = [(start, iter(edges.get(start, ())))]
        on_way = {start}
        way.append(start)
        while stack:
            name, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                way.pop()
                on_way.discard(name)
                done.add(name)
            elif following in on_way:
                return [*way[way.index(following) :], following]
            elif following not in done:
                stack.append((following, iter(edges.get(following, ()))))
                way.append(following)
                on_way.add(following)
    return None
