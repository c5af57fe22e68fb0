"""The search grammar: ``field op value`` joined by ``AND``, as a condition in SQL.

    status = 'RUNNING' AND workflowType IN (import, export) AND startTime > 1700000000000

Operators ``= != > < >= <= IN``; ``*`` in a value of ``=`` and ``!=`` stands for anything; moments are epoch ms.
Values may stand in single or double quotes. A field that there is not is refused, not passed over.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Column, ColumnElement, Integer, Table, or_

from broker_engine.errors import BadRequest, Violation
from broker_engine.gateway.read_model import tasks, workflows

#: Conductor's field names, and the columns that they are.
FIELDS: Mapping[Table, Mapping[str, Column[Any]]] = {
    workflows: {
        "workflowId": workflows.c.workflow_id,
        "workflowType": workflows.c.name,
        "workflowName": workflows.c.name,
        "version": workflows.c.version,
        "status": workflows.c.status,
        "correlationId": workflows.c.correlation_id,
        "priority": workflows.c.priority,
        "createdBy": workflows.c.created_by,
        "tenant": workflows.c.tenant,
        "idempotencyKey": workflows.c.idempotency_key,
        "reasonForIncompletion": workflows.c.reason,
        "startTime": workflows.c.start_time,
        "updateTime": workflows.c.update_time,
        "endTime": workflows.c.end_time,
    },
    tasks: {
        "taskId": tasks.c.task_id,
        "taskType": tasks.c.task_type,
        "taskDefName": tasks.c.task_type,
        "referenceTaskName": tasks.c.reference,
        "workflowId": tasks.c.workflow_id,
        "workflowType": tasks.c.workflow_name,
        "status": tasks.c.status,
        "phase": tasks.c.phase,
        "domain": tasks.c.domain,
        "workerId": tasks.c.worker_id,
        "waitingFor": tasks.c.waiting_for,
        "scheduledTime": tasks.c.scheduled_time,
        "startTime": tasks.c.start_time,
        "updateTime": tasks.c.update_time,
        "endTime": tasks.c.end_time,
    },
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_TOKEN = re.compile(
    r"""\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<op>!=|>=|<=|[=<>(),])|(?P<word>[^\s=<>!(),'"]+))"""
)
_ORDERS = ("ASC", "DESC")
MAX_QUERY = 10_000


class _Token(NamedTuple):
    text: str
    is_quoted: bool = False
    is_operator: bool = False

    def says(self, word: str) -> bool:
        return not self.is_quoted and self.text.upper() == word


def parse(query: str, table: Table) -> list[ColumnElement[bool]]:
    """The conditions of a query, all of which must hold; none for an empty one.

    Raises:
        BadRequest: it is not of this grammar, or asks for a field that there is not.
    """
    if len(query) > MAX_QUERY:
        raise _bad(f"has {len(query)} characters, the limit is {MAX_QUERY}", query[:100])
    tokens = list(_tokens(query))
    conditions: list[ColumnElement[bool]] = []
    place = 0
    while place < len(tokens):
        if conditions:
            if not tokens[place].says("AND"):
                raise _bad("conditions are joined by AND", tokens[place].text)
            place += 1
        condition, place = _condition(tokens, place, table, query)
        conditions.append(condition)
    return conditions


def order_by(sort: str | None, table: Table) -> list[Any]:
    """``field:ASC|DESC``, several joined by ``|`` or ``,``; by default the newest first.

    Raises:
        BadRequest: an unknown field or direction.
    """
    if not sort:
        return [(workflows.c.start_time if table is workflows else tasks.c.update_time).desc()]
    orders = []
    for part in re.split(r"[|,]", sort):
        name, _, direction = part.strip().partition(":")
        if (direction or "ASC").upper() not in _ORDERS:
            raise BadRequest(
                violations=(Violation(path="sort", message="the direction is ASC or DESC", invalid_value=direction),)
            )
        column = _column(name, table, "sort")
        orders.append(column.desc() if direction.upper() == "DESC" else column.asc())
    return orders


def free_text(text: str | None, table: Table) -> list[ColumnElement[bool]]:
    """Every word must occur; ``*`` alone is everything."""
    words = [] if text is None else [word for word in text.lower().split() if word.strip("*")]
    return [table.c.text.contains(word.strip("*"), autoescape=True) for word in words]


def _tokens(query: str) -> Iterator[_Token]:
    place, end = 0, len(query.rstrip())
    while place < end:
        match = _TOKEN.match(query, place)
        if match is None:
            raise _bad("cannot be read from here on", query[place:][:50])
        place = match.end()
        quoted = match["single"] if match["single"] is not None else match["double"]
        if quoted is not None:
            yield _Token(quoted, is_quoted=True)
        else:
            yield _Token(match["op"] or match["word"], is_operator=match["op"] is not None)


def _condition(tokens: list[_Token], place: int, table: Table, query: str) -> tuple[ColumnElement[bool], int]:
    if len(tokens) < place + 3:
        raise _bad("ends in the middle of a condition: field, operator, value", query[-50:])
    name, sign, value = tokens[place : place + 3]
    column = _column(name.text, table, "query")
    if sign.says("IN"):
        values, after = _list(tokens, place + 2, query)
        return column.in_([_value(column, item, name.text) for item in values]), after
    compare = _COMPARISONS.get(sign.text) if sign.is_operator else None
    if compare is None:
        raise _bad(f"the operator is one of {' '.join(_COMPARISONS)} IN", sign.text)
    if value.is_operator:
        raise _bad("a value is missing", value.text)
    if sign.text in ("=", "!=") and "*" in value.text and not _is_number(column):
        like = column.like(_pattern(value.text), escape="\\")
        return (like if sign.text == "=" else or_(~like, column.is_(None))), place + 3
    condition: ColumnElement[bool] = compare(column, _value(column, value.text, name.text))
    return condition, place + 3


def _list(tokens: list[_Token], place: int, query: str) -> tuple[list[str], int]:
    """What stands in ``(a, b)`` and the place after it."""
    values: list[str] = []
    if not (tokens[place].is_operator and tokens[place].text == "("):
        raise _bad("IN is followed by a list in parentheses", tokens[place].text)
    for at in range(place + 1, len(tokens)):
        token = tokens[at]
        if token.is_operator and token.text == ")":
            return values, at + 1
        if not token.is_operator:
            values.append(token.text)
        elif token.text != ",":
            raise _bad("a list holds values joined by commas", token.text)
    raise _bad("a list is not closed", query[-50:])


def _column(name: str, table: Table, path: str) -> Column[Any]:
    column = FIELDS[table].get(name)
    if column is None:
        allowed = ", ".join(FIELDS[table])
        raise BadRequest(
            violations=(Violation(path=path, message=f"unknown field, allowed are {allowed}", invalid_value=name),)
        )
    return column


def _value(column: Column[Any], text: str, name: str) -> str | int:
    if not _is_number(column):
        return text
    try:
        return int(text)
    except ValueError:
        raise _bad(f"{name} is compared with a whole number (moments are epoch milliseconds)", text) from None


def _is_number(column: Column[Any]) -> bool:
    return isinstance(column.type, Integer | BigInteger)


def _pattern(text: str) -> str:
    escaped = re.sub(r"([\\%_])", r"\\\1", text)
    return escaped.replace("*", "%")


def _bad(message: str, value: str) -> BadRequest:
    return BadRequest(violations=(Violation(path="query", message=message, invalid_value=value),))
