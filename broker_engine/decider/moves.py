"""Where a task may go, and what may send it there: one table.

The table says what is legal; ``decide.py`` chooses. A move outside it is a bug of ours and quarantines the workflow.
The state diagram in the docs is drawn from it (``python -m broker_engine.decider.moves``), and the tests visit
every cell. Not in the table: a retry. A failed attempt never comes back to life; the next attempt is a new task that
*appears*.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from broker_engine.model.status import STARTED, TERMINAL_PHASES, Phase


class Cause(StrEnum):
    """What happens to a task."""

    APPEARS = "appears"
    DELAY_OVER = "delay over"
    HANDED_OUT_AGAIN = "handed out again"
    STARTED = "started"
    PREPARED = "prepared"
    PUT_AWAY = "put away by its worker"
    COMPLETED = "completed"
    FAILED = "failed"
    FAILED_TERMINALLY = "failed terminally"
    CANCELED_BY_WORKER = "canceled by worker"
    TIMED_OUT = "timed out"
    ALERTED = "alerted"
    WORKFLOW_ENDS = "workflow ends"
    MOVED = "moved to another domain"
    CANCELED = "canceled"
    CANCEL_ASKED = "asked to stop"
    PAUSE_ASKED = "asked to pause"
    PAUSED = "paused"
    RESUMED = "resumed"
    ITERATES = "iterates"
    READY = "its dependencies have ended"
    EVALUATES = "evaluates its condition"
    CHILD_STARTED = "starts its sub-workflow again"


_WAITING = (Phase.CREATED, Phase.RETRY_WAIT)
_LIVE = (*_WAITING, Phase.QUEUED, Phase.STARTING, Phase.RUNNING, Phase.PAUSED)
#: An attempt that was asked to stop and fails, however it does, ends as canceled and is not retried.
_CANCELING_ENDS = (Cause.COMPLETED, Cause.FAILED, Cause.FAILED_TERMINALLY, Cause.CANCELED_BY_WORKER, Cause.TIMED_OUT)

MOVES: Mapping[tuple[Phase | None, Cause], frozenset[Phase]] = {
    # An input over the size limit ends a task as it appears; an optional one counts as done.
    # In a paused workflow it appears held. An operator of the engine's own runs, or is done, as it appears.
    (None, Cause.APPEARS): frozenset(
        {Phase.CREATED, Phase.RETRY_WAIT, Phase.QUEUED, Phase.RUNNING, Phase.PAUSED, Phase.FAILED, Phase.SUCCEEDED}
        | {Phase.SKIPPED}
    ),
    **{(phase, Cause.DELAY_OVER): frozenset({Phase.QUEUED}) for phase in _WAITING},
    # A callback: its worker put it away for a while.
    **{(phase, Cause.PUT_AWAY): frozenset({Phase.QUEUED}) for phase in (Phase.STARTING, Phase.RUNNING)},
    (Phase.QUEUED, Cause.DELAY_OVER): frozenset({Phase.QUEUED}),
    (Phase.QUEUED, Cause.HANDED_OUT_AGAIN): frozenset({Phase.QUEUED}),
    # A second start of the same hand-out takes over the lease. STARTING: its worker runs a set-up first.
    **{(phase, Cause.STARTED): STARTED for phase in (Phase.QUEUED, Phase.STARTING, Phase.RUNNING)},
    (Phase.STARTING, Cause.PREPARED): frozenset({Phase.RUNNING}),
    # A never-started task may be finished by hand, as in Conductor. An output over the limit is a failure; a failed
    # optional task goes straight to SUCCEEDED (D25).
    **{(phase, Cause.COMPLETED): frozenset({Phase.SUCCEEDED, Phase.FAILED}) for phase in _LIVE},
    **{(phase, Cause.FAILED): frozenset({Phase.FAILED, Phase.SUCCEEDED}) for phase in _LIVE},
    **{(phase, Cause.FAILED_TERMINALLY): frozenset({Phase.FAILED, Phase.SUCCEEDED}) for phase in _LIVE},
    **{(phase, Cause.CANCELED_BY_WORKER): frozenset({Phase.CANCELED, Phase.SUCCEEDED}) for phase in _LIVE},
    **{(phase, Cause.TIMED_OUT): frozenset({Phase.TIMED_OUT, Phase.SUCCEEDED}) for phase in _LIVE},
    **{(phase, Cause.ALERTED): frozenset({phase}) for phase in _LIVE},
    **{(phase, Cause.MOVED): frozenset({phase}) for phase in (*_WAITING, Phase.QUEUED, Phase.PAUSED)},
    **{(phase, Cause.WORKFLOW_ENDS): frozenset({Phase.CANCELED}) for phase in (*_LIVE, Phase.CANCELING)},
    # Cancel: what waits ends at once, what runs is asked (B8).
    **{
        (phase, Cause.CANCELED): frozenset({Phase.CANCELED, Phase.SUCCEEDED})
        for phase in (*_WAITING, Phase.QUEUED, Phase.RUNNING, Phase.PAUSED)  # RUNNING: without a worker
    },
    **{(phase, Cause.CANCEL_ASKED): frozenset({Phase.CANCELING}) for phase in (Phase.STARTING, Phase.RUNNING)},
    **{(Phase.CANCELING, cause): frozenset({Phase.CANCELED, Phase.SUCCEEDED}) for cause in _CANCELING_ENDS},
    (Phase.CANCELING, Cause.ALERTED): frozenset({Phase.CANCELING}),
    # Pause: what waits is held at once, what runs from its next safe point (B9).
    **{(phase, Cause.PAUSE_ASKED): frozenset({phase}) for phase in (Phase.STARTING, Phase.RUNNING)},
    **{
        (phase, Cause.PAUSED): frozenset({Phase.PAUSED})
        for phase in (*_WAITING, Phase.QUEUED, Phase.STARTING, Phase.RUNNING)
    },
    (Phase.PAUSED, Cause.RESUMED): frozenset({Phase.QUEUED, *_WAITING}),
    **{(phase, Cause.RESUMED): frozenset({phase}) for phase in (Phase.STARTING, Phase.RUNNING)},
    # A loop hands its condition out after each round, and begins the next one when it holds.
    (Phase.RUNNING, Cause.EVALUATES): frozenset({Phase.QUEUED}),
    # It begins as any other task appears.
    (Phase.CREATED, Cause.READY): frozenset(
        {Phase.CREATED, Phase.QUEUED, Phase.RUNNING, Phase.PAUSED, Phase.FAILED, Phase.SUCCEEDED, Phase.SKIPPED}
    ),
    # The back-off of a failed sub-workflow is over.
    **{(phase, Cause.CHILD_STARTED): frozenset({Phase.RUNNING}) for phase in (Phase.RETRY_WAIT, Phase.PAUSED)},
    **{(phase, Cause.ITERATES): frozenset({Phase.RUNNING}) for phase in (Phase.QUEUED, *STARTED)},
}


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    causes: dict[tuple[str, str], list[str]] = {}
    for (source, cause), targets in MOVES.items():
        for target in sorted(targets):
            causes.setdefault((source or "[*]", target), []).append(cause)
    lines = ["stateDiagram-v2"]
    lines += [f"    {source} --> {target}: {', '.join(found)}" for (source, target), found in causes.items()]
    lines += [f"    {phase} --> [*]" for phase in Phase if phase in TERMINAL_PHASES and _is_reached(phase)]
    return "\n".join(lines)


def _is_reached(phase: Phase) -> bool:
    return any(phase in targets for targets in MOVES.values())


if __name__ == "__main__":
    print(mermaid())  # noqa: T201 - the docs build reads stdout
