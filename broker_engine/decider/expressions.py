"""``${…}`` expressions: how the inputs of a task and the output of a workflow are put together.

Conductor's rules (ParametersUtils). A string that is one expression keeps the value's own type; in mixed text values
are joined as Java would print them; a missing path is null; ``$${x}`` is the text ``${x}``; nested expressions resolve
from the inside out; resolved values are not resolved again. Paths are Jayway JSONPath: plain dotted ones are walked
here, all others (wildcards, filters, ``..``) go through jsonpath-ng. Only environment names given by configuration are
visible (D19); ``${workflow.secrets.…}`` stays as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple, Protocol

from jsonpath_ng.ext.parser import parse as parse_jsonpath

from broker_engine.model.definitions import Json

#: Expressions inside expressions; what is deeper stays text.
MAX_NESTING = 16


class Document(Protocol):
    """What expressions can see: ``workflow`` and one entry per task reference, each made when first asked for."""

    def root(self, name: str) -> Json:
        """The value of a top-level name; None when there is none."""

    def member(self, name: str, member: str) -> Json:
        """``root(name)[member]``, without making the rest of the root."""

    def roots(self) -> Mapping[str, Json]:
        """All of it, for paths that start with a wildcard."""

    def named(self, name: str) -> str | None:
        """A system name (``CPEWF_TASK_ID``, an allowed environment variable)."""


class _Expression(NamedTuple):
    """``${…}``: the parts between the braces, text and nested expressions."""

    parts: tuple[str | _Expression, ...]


#: ``name``, then ``.name``, ``['name']`` or ``[number]``.
_STEP = re.compile(r"\.?([^.\[\]'\"*?@$(),:\s][^.\[\]'\"*?@$(),:]*)|\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\d+)\]")
#: Paths with these may match many values; their result is a list, as in Jayway.
_INDEFINITE = re.compile(r"\*|\.\.|\?\(|\[[^'\"\]]*[:,][^'\"\]]*\]")


def resolve(template: Json, document: Document) -> Json:
    """Replace the expressions in a JSON template; map keys are left as they are."""
    if isinstance(template, str):
        return _evaluator(template)(document) if "${" in template else template
    if isinstance(template, Mapping):
        return {key: resolve(value, document) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [resolve(value, document) for value in template]
    return template


def references(template: Json) -> frozenset[str]:
    """The top-level names that a template's expressions start with (those that can be told without running)."""
    found: set[str] = set()
    _collect(template, found)
    return frozenset(found)


def _collect(template: Json, found: set[str]) -> None:
    if isinstance(template, str):
        for part in parse(template):
            _collect_expression(part, found)
    elif isinstance(template, Mapping):
        for value in template.values():
            _collect(value, found)
    elif isinstance(template, list | tuple):
        for value in template:
            _collect(value, found)


def _collect_expression(part: str | _Expression, found: set[str]) -> None:
    if isinstance(part, str):
        return
    first = part.parts[0] if part.parts else ""
    if isinstance(first, str):
        path = first.strip().removeprefix("$.")
        match = _STEP.match(path)
        if match and match.end() < len(path) and not path.startswith(("$", "@")):
            found.add(match.group(1) or match.group(2) or match.group(3) or "")
    for nested in part.parts:
        _collect_expression(nested, found)


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[str | _Expression, ...]:
    """Split a text into plain parts and expressions. An unclosed ``${`` is plain text."""
    parts, position = _parse_until(text, 0, depth=0)
    assert position == len(text)
    return tuple(parts)


def _parse_until(text: str, position: int, *, depth: int) -> tuple[list[str | _Expression], int]:
    parts: list[str | _Expression] = []
    plain: list[str] = []

    def flush() -> None:
        if plain:
            parts.append("".join(plain))
            plain.clear()

    while position < len(text):
        is_escape = text.startswith("$${", position) and not depth
        start = position + 3 if is_escape else position + 2
        if (is_escape or text.startswith("${", position)) and depth < MAX_NESTING:
            end = _closing_brace(text, start)
            if end is None:
                plain.append(text[position:])
                position = len(text)
            elif is_escape:
                plain.append(text[position + 1 : end])
                position = end
            else:
                flush()
                inner, _ = _parse_until(text[start : end - 1], 0, depth=depth + 1)
                parts.append(_Expression(tuple(inner)))
                position = end
        else:
            plain.append(text[position])
            position += 1
    flush()
    return parts, position


def _closing_brace(text: str, position: int) -> int | None:
    """The index after the brace that closes the one before ``position``; None when none does."""
    depth = 1
    while position < len(text):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return None


@lru_cache(maxsize=4096)
def _evaluator(text: str) -> Callable[[Document], Json]:
    """A function from document to value for one text of a template."""
    parts = parse(text)
    if len(parts) != 1:
        return lambda document: "".join(
            part if isinstance(part, str) else java_text(_evaluate(part, document)) for part in parts
        )
    only = parts[0]
    if isinstance(only, str):
        return lambda _document: only
    return lambda document: _evaluate(only, document)


def _evaluate(expression: _Expression, document: Document) -> Json:
    first = expression.parts[0] if len(expression.parts) == 1 else None
    path = (
        first
        if isinstance(first, str)
        else "".join(
            part if isinstance(part, str) else java_text(_evaluate(part, document)) for part in expression.parts
        )
    ).strip()
    if not path:
        return ""
    if path.startswith("workflow.secrets."):
        return "${" + path + "}"
    named = document.named(path)
    if named is not None:
        return named
    try:
        value = compile_path(path)
    except ValueError:  # put together from values, so no check of the definition could see it
        return None
    return value(document)


@lru_cache(maxsize=4096)
def compile_path(path: str) -> Callable[[Document], Json]:
    """A function from document to value for one path.

    Raises:
        ValueError: the path is no JSONPath.
    """
    bare = path.removeprefix("$.") if path.startswith("$.") and not path.startswith("$..") else path
    steps = _plain_steps(bare)
    if steps is not None:
        return lambda document: _walk(document, steps)
    return _compile_jsonpath(bare if bare.startswith("$") else f"$.{bare}")


def _plain_steps(path: str) -> tuple[str | int, ...] | None:
    steps: list[str | int] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None or (position > 0 and match.group(1) is not None and path[position] != "."):
            return None
        name, single, double, number = match.groups()
        steps.append(int(number) if number is not None else name or single or double or "")
        position = match.end()
    return tuple(steps) if steps and isinstance(steps[0], str) else None


def _walk(document: Document, steps: tuple[str | int, ...]) -> Json:
    if len(steps) > 1 and isinstance(steps[1], str):
        value, rest = document.member(str(steps[0]), steps[1]), steps[2:]
    else:
        value, rest = document.root(str(steps[0])), steps[1:]
    for step in rest:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step] if step < len(value) else None
        else:
            return None
    return value


def _compile_jsonpath(path: str) -> Callable[[Document], Json]:
    try:
        compiled = parse_jsonpath(path)
    except Exception as error:  # its lexer and parser raise bare Exception for some texts
        raise ValueError(f"{path!r} is not a JSONPath: {error}") from error
    is_indefinite = _INDEFINITE.search(path) is not None

    def evaluate(document: Document) -> Json:
        found = [match.value for match in compiled.find(dict(document.roots()))]
        if is_indefinite:
            return found
        return found[0] if found else None

    return evaluate


def java_text(value: Json) -> str:
    """How Java prints a value inside a string: null, true, {a=1, b=[2, x]}."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={java_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(java_text, value)) + "]"
    return _java_double(value) if isinstance(value, float) else str(value)


def _java_double(value: float) -> str:
    """Java turns to scientific notation below 0.001 and from 10 million on (Double.toString)."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int), "JSON knows neither infinity nor NaN"
    first, *rest = map(str, digits)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{exponent + len(rest)}"
