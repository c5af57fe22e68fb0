"""Workflow definitions as pictures: a Mermaid flowchart, and a tree of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker_engine.model.definitions import Steps, WorkflowDef, WorkflowTask

#: Mermaid's brackets for each kind of step; the others are boxes.
_SHAPES = {
    "SWITCH": ("{", "}"),
    "DECISION": ("{", "}"),
    "FORK_JOIN": ("[/", "\\]"),
    "FORK_JOIN_DYNAMIC": ("[/", "\\]"),
    "JOIN": ("[\\", "/]"),
    "EXCLUSIVE_JOIN": ("[\\", "/]"),
    "SUB_WORKFLOW": ("[[", "]]"),
    "TERMINATE": ("([", "])"),
    "HUMAN": ("[/", "/]"),
}
_OTHERWISE = "otherwise"


class _End(NamedTuple):
    """Where an edge comes from, and what stands at it."""

    node: str
    label: str = ""


class _Flowchart:
    def __init__(self) -> None:
        self.lines = ["flowchart TD"]
        self._names: dict[str, str] = {}
        self._indent = 1

    def name(self, reference: str) -> str:
        """References may hold what Mermaid's names may not."""
        return self._names.setdefault(reference, f"n{len(self._names) + 1}")

    def write(self, line: str) -> None:
        self.lines.append("    " * self._indent + line)

    def edges(self, sources: Sequence[_End], target: str) -> None:
        for source in sources:
            label = f"|{_quoted(source.label)}|" if source.label else ""
            self.write(f"{source.node} -->{label} {target}")

    def steps(self, steps: Steps, sources: Sequence[_End]) -> list[_End]:
        """Draw a list; returns where it ends."""
        if any(step.depends_on for step in steps):
            return self._graph(steps, sources)
        ends = list(sources)
        for step in steps:
            ends = self.step(step, ends)
        return ends

    def _graph(self, steps: Steps, sources: Sequence[_End]) -> list[_End]:
        ends = {step.reference: self.step(step, () if step.depends_on else sources) for step in steps}
        for step in steps:
            for reference in step.depends_on:
                self.edges(ends[reference], self.name(step.reference))
        needed = {reference for step in steps for reference in step.depends_on}
        return [end for reference, found in ends.items() if reference not in needed for end in found]

    def step(self, step: WorkflowTask, sources: Sequence[_End]) -> list[_End]:
        own = self.name(step.reference)
        if step.body:
            self.write(f"subgraph {own} [{_quoted(_text(step))}]")
            self._indent += 1
            self.steps(step.body, ())
            self._indent -= 1
            self.write("end")
            self.edges(sources, own)
            return [_End(own)]
        left, right = _SHAPES.get(step.type, ("[", "]"))
        self.write(f"{own}{left}{_quoted(_text(step))}{right}")
        self.edges(sources, own)
        if step.type == "TERMINATE":
            return []
        if step.branches:
            return [end for branch in step.branches for end in self.steps(branch, [_End(own)])]
        lists = {**step.cases, _OTHERWISE: step.default_case} if step.cases or step.default_case else {}
        ends: list[_End] = []
        for case, inner in lists.items():
            ends += self.steps(inner, [_End(own, case)])
        return ends or [_End(own)]


def mermaid(definition: WorkflowDef) -> str:
    """A Mermaid flowchart of a definition."""
    chart = _Flowchart()
    chart.write("begin((begin))")
    ends = chart.steps(definition.tasks, [_End("begin")])
    chart.write("done((end))")
    chart.edges(ends, "done")
    return "\n".join(chart.lines)


def _text(step: WorkflowTask) -> str:
    what = step.name if step.type == "SIMPLE" else step.type
    if step.type == "DO_WHILE":
        what += " for each item" if step.loop_condition is None else f" while {step.loop_condition}"
    return step.reference if what == step.reference else f"{step.reference}: {what}"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;").replace("\n", " ") + '"'


def tree(definition: WorkflowDef) -> str:
    """A definition as a tree of text, one line for each step."""
    return "\n".join([f"{definition.name}:{definition.version}", *_lines(definition.tasks, "")])


def _lines(steps: Steps, margin: str) -> Iterator[str]:
    for step in steps:
        is_last = step is steps[-1]
        after = f" after {', '.join(step.depends_on)}" if step.depends_on else ""
        joins = f" of {', '.join(step.join_on)}" if step.join_on else ""
        undone = f" (undone by {step.compensation})" if step.compensation else ""
        yield f"{margin}{'└─' if is_last else '├─'} {_text(step)}{joins}{after}{undone}"
        yield from _inside(step, margin + ("   " if is_last else "│  "))


def _inside(step: WorkflowTask, margin: str) -> Iterator[str]:
    yield from _lines(step.body, margin)
    named = [(f"branch {number}", branch) for number, branch in enumerate(step.branches, 1)]
    named += step.cases.items()
    if step.default_case:
        named.append((_OTHERWISE, step.default_case))
    for number, (name, inner) in enumerate(named, 1):
        is_last = number == len(named)
        yield f"{margin}{'└─' if is_last else '├─'} [{name}]"
        yield from _lines(inner, margin + ("   " if is_last else "│  "))
