"""Which domain a task goes to: ``taskToDomain`` of the start, and which domains have a live poller (D13).

``{"*": "eu, us, NO_DOMAIN", "encode": "gpu"}``: a task type, or ``*`` for all others, to a list of domains. The first
entry that a worker of the task type polls wins; when none does, the last one. ``NO_DOMAIN`` is the default domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import orjson

from broker_engine.decider.context import Context
from broker_engine.model.names import encode_name

NO_DOMAIN = "NO_DOMAIN"
ANY_TASK = "*"
#: A domain counts as served while a worker was heard of within this (Conductor's activeWorkerLastPollTimeout).
LIVE_MS = 10_000
#: What domains may be long as they are spelled in the names of topics (model.names).
MAX_DOMAIN = 60
MAX_DOMAINS = 20
MAX_DOCUMENT_BYTES = 10_000


def domains_problem(document: bytes) -> str | None:
    """What is wrong with a ``taskToDomain``; None when nothing is."""
    if len(document) > MAX_DOCUMENT_BYTES:
        return f"taskToDomain has {len(document)} bytes, the limit is {MAX_DOCUMENT_BYTES}: name fewer task types"
    try:
        found = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        return f"taskToDomain is not valid JSON: {error}"
    if not isinstance(found, dict):
        return f'taskToDomain must be an object such as {{"*": "eu, NO_DOMAIN"}}, not {type(found).__name__}'
    problems = (_list_problem(task_type, value) for task_type, value in found.items())
    return next(filter(None, problems), None)


def _list_problem(task_type: str, value: object) -> str | None:
    field = f"taskToDomain[{orjson.dumps(task_type).decode()}]"
    if not isinstance(value, str):
        return f'{field} must be a text such as "eu, us, NO_DOMAIN", not {type(value).__name__}'
    entries = _entries(value)
    if len(entries) > MAX_DOMAINS:
        return f"{field} names {len(entries)} domains, at most {MAX_DOMAINS} are allowed"
    for entry in entries:
        if not entry:
            return f"{field} is {value!r}: name a domain between the commas"
        if problem := name_problem(entry):
            return f"{field} {problem}"
    if any(entry.upper() == NO_DOMAIN for entry in entries[:-1]):
        return f"{field} is {value!r}: {NO_DOMAIN} must be the last entry, the ones after it would never be used"
    return None


def name_problem(domain: str) -> str | None:
    """Why no queue can be in such a domain; follows the name of a field."""
    if not domain.strip() or "," in domain:
        return f"names {domain[:80]!r}: a domain has a name without commas"
    if not domain.isprintable():
        return f"names {domain[:80]!r}: a domain has printable characters only"
    if len(encode_name(domain)) > MAX_DOMAIN:
        return (
            f"names {domain[:80]!r}: in the name of a topic a domain has at most {MAX_DOMAIN} characters "
            f"(others than letters and digits count as three)"
        )
    return None


def domain_choices(document: bytes, task_type: str, default_domain: str) -> tuple[str, ...]:
    """The domains that a task of this type may go to, best first; none: it has no entry and goes to the default."""
    lists = _parsed(document)
    value = lists.get(task_type, lists.get(ANY_TASK))
    if value is None:
        return ()
    return tuple(default_domain if entry.upper() == NO_DOMAIN else entry for entry in _entries(value))


def choose(choices: tuple[str, ...], task_type: str, context: Context) -> str:
    """The first domain in which a worker of this task type lives, else the last."""
    if not choices:
        return context.default_domain
    horizon_ms = context.now_ms - LIVE_MS
    for domain in choices[:-1]:
        seen_ms = context.pollers.last_seen_ms(domain, task_type)
        if seen_ms is not None and seen_ms > horizon_ms:
            return domain
    return choices[-1]


def place(document: bytes | None, task_type: str, context: Context) -> tuple[str, str]:
    """The domain that a new attempt goes to, and its choices as they are recorded."""
    if document is None:
        return context.default_domain, ""
    choices = domain_choices(document, task_type, context.default_domain)
    return choose(choices, task_type, context), ",".join(choices)


def _entries(value: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in value.split(","))


@lru_cache(maxsize=1_000)
def _parsed(document: bytes) -> Mapping[str, str]:
    """Many workflows are started with the same few documents."""
    return MappingProxyType(orjson.loads(document))
