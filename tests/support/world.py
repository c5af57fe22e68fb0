"""A seeded world: the engine in memory under a workload, with everything that can go wrong going wrong.

``World(seed).run()`` draws what happens next, one step at a time: a process goes on, a client sends, time passes, or a
fault strikes. When the faults stop, time runs on until nothing more is to happen. ``history`` keeps every record that
was ever visible, also those that compaction has removed since; the checkers (tests/support/promises.py) judge by it.
"""

from __future__ import annotations

import random
from collections import Counter
from hashlib import blake2b
from typing import Any, cast

from broker_engine.errors import BrokerEngineError, LogError, TransactionAborted
from broker_engine.log.memory import Crashed, MemoryGroupReader, MemoryReader
from broker_engine.log.ports import BEGINNING, Record, TopicPartition
from broker_engine.model.commands import (
    AnyCommand,
    CancelTask,
    PauseTask,
    PauseWorkflow,
    ResumeTask,
    ResumeWorkflow,
    TaskRequest,
    TerminateWorkflow,
)
from broker_engine.model.status import WorkflowStatus
from broker_engine.runtime import takeover
from broker_engine.runtime.commits import LateCommits, LazyCommits, PromptCommits
from broker_engine.testing import Behaviour, Engine, Node
from broker_engine.topics import DELAY_TIERS, Topic
from broker_engine.wire.records import ScheduledTask
from broker_engine.worker import TaskFailed, TaskFailedForGood

#: Task types of the workload: what can happen to a task is in its definition and in how often its handler fails.
TASKS: dict[str, dict[str, Any]] = {
    "quick": {"retryCount": 2, "retryDelaySeconds": 1, "responseTimeoutSeconds": 20},
    "flaky": {"retryCount": 3, "retryDelaySeconds": 20, "responseTimeoutSeconds": 10, "backoffJitterMs": 500},
    "steep": {
        "retryCount": 4,
        "retryLogic": "EXPONENTIAL_BACKOFF",
        "retryDelaySeconds": 1,
        "maxRetryDelaySeconds": 6,
        "responseTimeoutSeconds": 15,
        "totalTimeoutSeconds": 120,
    },
    "strict": {
        "retryCount": 1,
        "retryDelaySeconds": 0,
        "timeoutSeconds": 25,
        "timeoutPolicy": "RETRY",
        "concurrentExecLimit": 2,
    },
    "unserved": {"retryCount": 1, "retryDelaySeconds": 2, "pollTimeoutSeconds": 15, "timeoutPolicy": "RETRY"},
}
#: A task that nobody answers is given up after this, whatever its definition says otherwise.
LIMITS = {"pollTimeoutSeconds": 60, "responseTimeoutSeconds": 20, "timeoutSeconds": 120, "timeoutPolicy": "RETRY"}
FAILS = {"quick": 0.2, "flaky": 0.5, "steep": 0.7, "strict": 0.3, "unserved": 0.0}
WORKFLOWS: dict[str, list[dict[str, Any]]] = {
    "single": [{"name": "quick"}],
    "chain": [{"name": "quick"}, {"name": "steep"}, {"name": "quick", "startDelay": 3}],
    "patient": [{"name": "flaky"}, {"name": "strict"}],
    "optional": [{"name": "strict", "optional": True}, {"name": "quick"}],
    "lonely": [{"name": "quick"}, {"name": "unserved"}],
    "bounded": [{"name": "steep"}, {"name": "flaky"}, {"name": "steep"}],
}
COMPACTED = (
    Topic.WORKFLOW_STATE,
    Topic.TASK_STATE,
    Topic.SNAPSHOTS,
    Topic.CHECKPOINTS,
    Topic.IDEMPOTENCY,
    Topic.LIMIT_STATE,
    Topic.TASK_DEFS,
    Topic.WORKFLOW_DEFS,
)

#: No time passes inside a step, so waiting there for a transaction to end is in vain: the takeover is tried again.
takeover._STABLE_SECONDS = 0.0


class World(Engine):
    """An engine whose life is drawn from a seed."""

    def __init__(self, seed: int, *, steps: int = 700, workflows: int = 30) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        super().__init__(
            partitions=self.rng.choice([1, 2, 3]),
            nodes=self.rng.choice([1, 1, 2, 3]),
            key=self.rng.choice([None, "secret"]),
            batch_records=self.rng.choice([2, 10, 500]),
            retention_ms=10**12,
            commits=self.rng.choice([PromptCommits, LazyCommits, LateCommits]),
        )
        self._steps = steps
        self._workflows_left = workflows
        self.started: list[str] = []
        #: In every other world somebody cancels and pauses: drawn apart, so that the other histories stay the same.
        self._operator = random.Random(f"{seed} operator") if seed % 2 else None
        #: How often each fault has struck.
        self.faults: Counter[str] = Counter()
        self.history: list[Record] = []
        self._historian = self.log.reader(headers=True)
        self._seen: dict[TopicPartition, int] = {}
        self._is_faulty = True

    # --- the story

    def run_story(self) -> None:
        """Everything: definitions, faults under load, and the quiet after."""
        self.live()
        while self._workflows_left:
            self._client()
        self.calm()
        self.finish()

    def live(self) -> None:
        """Definitions, and faults under load."""
        self.run()
        for name, definition in TASKS.items():
            self.register_task({"name": name, **LIMITS, **definition})
        for name, tasks in WORKFLOWS.items():
            steps = [{"taskReferenceName": f"{task['name']}{n}", **task} for n, task in enumerate(tasks)]
            timeout = {"timeoutSeconds": 90, "timeoutPolicy": "TIME_OUT_WF"} if name == "bounded" else {}
            self.register_workflow({"name": name, "tasks": steps, **timeout})
        for name in TASKS:
            if name == "unserved":
                continue
            for _ in range(self.rng.choice([1, 2])):
                self.serve(name, self._handle, takes_ms=self._takes_ms, behaves=self._behaves)
        for _ in range(self._steps):
            self._draw()

    def _draw(self) -> None:
        roll = self.rng.random()
        if roll < 0.45:
            self.step_node(self.rng.choice(self.nodes))
        elif roll < 0.55:
            self.tiers[self.rng.choice(list(DELAY_TIERS))].step()
        elif roll < 0.62:
            self.tiers["last"].step()
        elif roll < 0.76:
            self.rng.choice(self.workers).step(self.rng.choice([1, 5]))
        elif roll < 0.82:
            self._client()
        elif roll < 0.91:
            self.clock.advance(self.rng.choice([1, 20, 200, 1_000]))
        elif roll < 0.925:
            self.clock.advance(self.rng.choice([3_000, 8_000, 30_000]))  # also a step in log time: nobody wrote
        else:
            self._fault()

    def step_node(self, node: Node) -> None:
        """A step of a decider, with a supervisor that starts it again when it has ended."""
        try:
            node.step()
        except BrokerEngineError:  # replaced again and again: the process ends by itself, its supervisor starts it
            self.faults["ended by itself"] += 1
            node.kill()
        if not self._is_faulty:
            node.bury()
        if not node.is_up and (not self._is_faulty or self.rng.random() < 0.3):
            node.start()

    def _client(self) -> None:
        if self._operator is not None:
            for _ in range(self._operator.choice([0, 1, 2])):
                self._request(self._operator)
        roll = self.rng.random()
        if roll < 0.1 and self.started:
            self.send(TerminateWorkflow(key=self.rng.choice(self.started), reason="drawn", **self.asked()))
        elif roll < 0.2 and self.started:
            again = self.rng.choice(self.started)  # an id that exists: answered 409 or by a repeated command
            self.submit(self.rng.choice(list(WORKFLOWS)), workflow_id=again)
        elif roll < 0.25:
            self.send_bytes(b"noise", self.rng.randbytes(20), self.rng.randrange(self.partitions))
        elif self._workflows_left:
            self._workflows_left -= 1
            name = self.rng.choice(list(WORKFLOWS))
            self.started.append(self.submit(name, {"n": self._workflows_left}))

    def _request(self, draw: random.Random) -> None:
        """Somebody cancels, pauses or resumes something that lives."""
        live = [
            execution
            for node in self.nodes
            for partition in node.partitions.values()
            for execution in partition.live.values()
        ]
        if not live:
            return
        execution = draw.choice(live)
        about = {"key": execution.workflow.workflow_id, **self.asked()}
        reference = draw.choice(sorted(execution.tasks))
        kind = draw.choice([CancelTask, PauseTask, PauseTask, ResumeTask, PauseWorkflow, ResumeWorkflow])
        self.faults[kind.__name__] += 1
        if issubclass(kind, TaskRequest):
            self.send(cast("AnyCommand", kind(**about, reference=reference)))
        else:
            self.send(cast("AnyCommand", kind(**about)))

    def _resume_all(self) -> None:
        for node in self.nodes:
            for partition in node.partitions.values():
                for execution in partition.live.values():
                    key = execution.workflow.workflow_id
                    if execution.workflow.status is WorkflowStatus.PAUSED:
                        self.send(ResumeWorkflow(key=key, **self.asked()))
                    for task in execution.tasks.values():
                        if task.paused_by is not None and not task.is_terminal:
                            self.send(ResumeTask(key=key, reference=task.reference, **self.asked()))

    # --- workers

    def _handle(self, _data: dict[str, Any], work: ScheduledTask) -> dict[str, Any]:
        roll = self.rng.random()
        if roll < 0.02:
            raise TaskFailedForGood("drawn")
        if roll < FAILS[work.task_type]:
            raise TaskFailed("drawn")
        return {"attempt": work.attempt}

    def _takes_ms(self, _work: ScheduledTask) -> int:
        if self._is_faulty and self.rng.random() < 0.05:
            return 30_000  # later than every response time-out
        return self.rng.choice([0, 10, 500, 3_000])

    def _behaves(self, _work: ScheduledTask) -> Behaviour:
        if not self._is_faulty or self.rng.random() < 0.8:
            return Behaviour.ANSWERS
        return self.rng.choice(list(Behaviour))

    # --- faults

    def _fault(self) -> None:
        name = self.rng.choice(
            [
                "kill",
                "crash at begin",
                "crash before commit",
                "crash after commit",
                "abort",
                "unknown, applied",
                "unknown, not applied",
                "zombie",
                "zombie at begin",
                "rewind",
                "duplicate",
                "compact",
                "lag",
                "new node",
                "clean stop",
                "tier dies",
                "worker dies",
                "broker away",
            ]
        )
        self.faults[name] += 1
        up = [node for node in self.nodes if node.is_up]
        node = self.rng.choice(up or self.nodes)
        match name:
            case "kill":
                node.kill()
                self._afterwards(node)
            case "crash at begin" | "crash before commit" | "crash after commit":
                self._crash(name)
            case "abort":
                self.log.commit_errors = [TransactionAborted("drawn")]
            case "unknown, applied" | "unknown, not applied":
                self.log.make_next_commit_unknown(applied=name == "unknown, applied")
            case "zombie":
                node.suspend()
            case "zombie at begin":
                self._zombie_at_begin()
            case "rewind":
                self._rewind(node)
            case "duplicate":
                self._duplicate()
            case "compact":
                self._compact()
            case "lag":
                self.log.lag_lso = not self.log.lag_lso
            case "new node":
                if len(self.nodes) < 4:
                    self.nodes.append(self.node(str(len(self.nodes))))
            case "clean stop":
                if node.is_up:
                    try:
                        node.stop()
                    except LogError:
                        node.kill()
                    self._afterwards(node)
            case "tier dies":
                self._kill_tier(self.rng.choice(list(DELAY_TIERS)))
            case "worker dies":
                self.rng.choice(self.workers).kill()
            case _:
                self._broker_away()

    def _afterwards(self, node: Node) -> None:
        """A dead process is missed by its group soon or late, and started again before or after that."""
        if self.rng.random() < 0.5:
            node.bury()
        if self.rng.random() < 0.5:
            node.start()
        for other in self.nodes:
            if self.rng.random() < 0.7:
                other.bury()

    def _crash(self, moment: str) -> None:
        def die(_transactional_id: str) -> None:
            self.log.before_begin = self.log.before_commit = self.log.on_commit = None
            raise Crashed

        if moment == "crash at begin":
            self.log.before_begin = die
        elif moment == "crash before commit":
            self.log.before_commit = die
        else:
            self.log.on_commit = die

    def _zombie_at_begin(self) -> None:
        """A batch is read and decided; before it is written, the partition has moved and another one has gone on."""

        def lose(transactional_id: str) -> None:
            self.log.before_begin = None
            for node in self.nodes:
                if self.namespace.transactional_id(node.slot) == transactional_id:
                    node.suspend()
            for _ in range(6):
                for node in self.nodes:
                    if self.namespace.transactional_id(node.slot) != transactional_id:
                        self.step_node(node)

        self.log.before_begin = lose

    def _rewind(self, node: Node) -> None:
        reader = node.session._reader if node.session is not None else None
        if isinstance(reader, MemoryGroupReader):
            for tp in sorted(reader.assignment()):
                if tp in reader._positions:
                    reader.rewind(tp, self.rng.choice([1, 5]))

    def _duplicate(self) -> None:
        """A record of commands stands twice on the log: a client or worker has sent it again."""
        records = self.records(Topic.COMMANDS)
        if records:
            record = self.rng.choice(records)
            self.send_bytes(record.key, record.value, record.partition)

    def _compact(self) -> None:
        self.tail()
        name = self.namespace.topic(self.rng.choice(COMPACTED))
        self.log.compact(name, remove_tombstones=self.rng.random() < 0.5)

    def _kill_tier(self, tier: str) -> None:
        reader = self.tiers[tier]._reader
        assert isinstance(reader, MemoryGroupReader)
        self.log.expire_session(reader)
        self.tiers[tier] = self.tier(tier)

    def _broker_away(self) -> None:
        self.log.broker_down = True
        for _ in range(self.rng.choice([1, 3, 10])):
            self.clock.advance(500)
            self.step_node(self.rng.choice(self.nodes))
            self.rng.choice(self.workers).step()
            self.tiers["last"].step()
        self.log.broker_down = False

    # --- the quiet after

    def calm(self) -> None:
        self._is_faulty = False
        self.log.before_begin = self.log.before_commit = self.log.on_commit = None
        self.log.commit_errors.clear()
        self.log.take_unknown_outcome()
        self.log.lag_lso = self.log.broker_down = False
        for node in self.nodes:
            node.bury()
            if not node.is_up:
                node.start()

    def finish(self) -> None:
        """Time runs on until every workflow has ended (bounded by the longest chain of time-outs)."""
        for _ in range(40):
            self.run(30)
            if self._operator is not None:
                self._resume_all()
            if self._is_at_rest():
                break
        self.tail()

    def _is_at_rest(self) -> bool:
        owned = {number for node in self.nodes for number in node.partitions}
        return len(owned) == self.partitions and not any(
            partition.live for node in self.nodes for partition in node.partitions.values()
        )

    # --- looking

    def tail(self) -> None:
        """Take in every record that has become visible since."""
        for name, topic in sorted(self.log.cluster.topics.items()):
            for number in range(len(topic.partitions)):
                tp = TopicPartition(name, number)
                reader: MemoryReader = self._historian
                reader.assign({tp: self._seen.get(tp, BEGINNING)})
                while records := reader.read(100_000, 0.0):
                    self.history += records
                self._seen[tp] = reader.position(tp)

    def digest(self) -> str:
        """Of everything that stands on every topic, markers and aborted records included."""
        total = blake2b(digest_size=16)
        for name, topic in sorted(self.log.cluster.topics.items()):
            for partition in topic.partitions:
                for entry in partition.entries:
                    outcome = entry.transaction.outcome if entry.transaction is not None else ""
                    place = (name, entry.offset, entry.timestamp_ms, entry.key, entry.value, entry.headers)
                    total.update(repr((place, outcome, entry.is_marker)).encode())
        return total.hexdigest()
