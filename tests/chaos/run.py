"""kill -9 at seeded random moments under load, then the promises, read from the topics alone.

    python -m tests.chaos.run [--kills 20] [--workflows 5000] [--deciders 1|2] [--broker-defaults] [--seed N]

Roles are processes of the installed command. While workflows are submitted at a steady pace, deciders, the delay role
and workers are killed and started again, each ``--kills`` times; with ``--deciders 2`` a second decider joins and
leaves as well. When everything has ended, the promises are checked, every local folder is deleted, the deciders start
from nothing, and the digest over the last value of each key of every compacted topic must be what it was. Prints
figures; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Any

from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.ports import Record
from broker_engine.runtime.local_broker import LocalBroker
from broker_engine.topics import CATALOGUE, Namespace, Topic
from broker_engine.wire.codecs import EVENT
from broker_engine.worker import Client
from tests.chaos.chores import RETRIES
from tests.support import promises
from tests.support.roles import KEY, Role, decider_role, delays_role, read_all, worker_role

PARTITIONS = 4
STEPS = ("a", "b")
WORKFLOW = {
    "name": "chores",
    "tasks": [
        {"name": "chore", "taskReferenceName": name, "inputParameters": {"n": "${workflow.input.n}"}} for name in STEPS
    ],
}
#: Everything must have ended this long after the last kill.
CALM_SECONDS = 240.0


class Chaos:
    """One run: its processes, and what was found."""

    def __init__(self, bootstrap: str, folder: Path, options: argparse.Namespace) -> None:
        self.rng = random.Random(options.seed)
        self.options = options
        self.name = f"chaos-{uuid.uuid4().hex[:8]}"
        self.namespace = Namespace(self.name)
        self.log = ConfluentLog(bootstrap)
        self.folder = folder
        self.roles: dict[str, Role] = {}
        self.deciders = [
            decider_role(
                bootstrap,
                self.name,
                folder / f"data-{slot}",
                slot=str(slot),
                partitions=PARTITIONS,
                log_file=folder / f"decider-{slot}.log",
            )
            for slot in range(1)
        ]
        self._bootstrap = bootstrap
        self.roles["decider"] = self.deciders[0]
        self.roles["delays"] = delays_role(bootstrap, self.name, log_file=folder / "delays.log")
        self.started: list[str] = []
        self._submitted = threading.Event()

    # --- the load

    def prepare(self) -> None:
        self._until(lambda: self._log_of("decider-0").count("takeover.done") >= PARTITIONS, 90, "the first takeover")
        self.client = Client(self.log, self.namespace, key=KEY, timeout=60)
        self.client.register_workflow(WORKFLOW)
        self.roles["worker"] = worker_role(
            self._bootstrap, self.name, "tests.chaos.chores", log_file=self.folder / "worker.log"
        )
        self._until(lambda: "chore" in self.client.task_definitions(), 60, "the registration")
        self.client.wait(self.client.start("chores", {"n": -1}, workflow_id="first"), 90)
        self.started.append("first")

    def submit(self) -> None:
        """Submit at a steady pace for as long as there are kills to come."""
        pause = self.options.seconds / self.options.workflows
        began = time.monotonic()
        for number in range(self.options.workflows):
            workflow_id = f"w{number}"
            self.client.start_async("chores", {"n": number}, workflow_id=workflow_id, wants_answer=False)
            self.started.append(workflow_id)
            ahead = began + number * pause - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
        self.client.flush(60)
        self._submitted.set()

    def kill(self) -> None:
        """The kills of all roles, in a drawn order at drawn moments over the time of the load."""
        kills = [role for role in self.roles for _ in range(self.options.kills)]
        self.rng.shuffle(kills)
        moments = sorted(self.rng.uniform(0, self.options.seconds) for _ in kills)
        began = time.monotonic()
        for name, moment in zip(kills, moments, strict=True):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            role = self.roles[name]
            role.kill()
            time.sleep(self.rng.uniform(0, 0.3))
            role.start()
            if self.options.deciders > 1 and self.rng.random() < 0.3:
                self._second_decider()

    def _second_decider(self) -> None:
        """It joins, or leaves: cleanly or by a kill."""
        if len(self.deciders) == 1:
            self.deciders.append(
                decider_role(
                    self._bootstrap,
                    self.name,
                    self.folder / "data-1",
                    slot="1",
                    partitions=PARTITIONS,
                    log_file=self.folder / "decider-1.log",
                )
            )
        elif self.rng.random() < 0.5:
            self.deciders.pop().kill()
        else:
            self.deciders.pop().stop()

    def calm(self) -> float:
        """Wait for every workflow to end; returns how long that took."""
        began = time.monotonic()
        assert self._submitted.wait(120), "the load was not submitted"
        expected = len(self.started)

        def ended() -> bool:
            states = list(self.client.list())
            return len(states) == expected and all(state.status.is_terminal for state in states)

        self._until(ended, CALM_SECONDS, "the end of every workflow", pause=2.0)
        return time.monotonic() - began

    # --- what came of it

    def check(self) -> dict[str, Any]:
        admin = self.log.admin()
        queues = [name for name in admin.topics() if self.namespace.is_schedule(name)]
        fixed = [Topic.COMMANDS, Topic.WORKFLOW_STATE, Topic.TASK_STATE, Topic.EVENTS]
        found = read_all(self.log, [*(self.namespace.topic(topic) for topic in fixed), *queues])
        records = promises.Records(self.namespace, found)
        problems = {
            "lost": promises.every_start_has_a_workflow(records, self.started),
            "unended": promises.every_workflow_ends(records),
            "scheduled_twice": promises.one_schedule_per_hand_out(records),
            "attempts": promises.attempts_are_bounded(records, {"chore": RETRIES}),
            "terminal_changed": promises.terminal_never_changes(records),
            "early": promises.no_retry_before_its_delay(records),
            "timed_out_too_soon": promises.no_timeout_while_a_result_was_unread(records),
            "torn": promises.no_transaction_was_torn(records),
            "decided_twice": promises.each_command_is_decided_once(records),
        }
        last = {workflow.workflow_id: workflow for workflow in records.workflows()}
        reasons = Counter(
            step.reason_code.value
            for record in records.of(Topic.EVENTS)
            for step in EVENT.decode(record.value).transitions
        )
        return {
            "problems": problems,
            "statuses": dict(Counter(workflow.status.value for workflow in last.values())),
            "attempts": len({task.task_id for task in records.tasks()}),
            "reasons": dict(reasons),
        }

    def digest(self) -> str:
        """Over the last value of each key of the topics that make up the state (checkpoints move with every tick)."""
        compacted = [
            topic for topic, spec in CATALOGUE.items() if spec.policy == "compact" and topic is not Topic.CHECKPOINTS
        ]
        latest: dict[tuple[str, int, bytes], Record] = {}
        for record in read_all(self.log, [self.namespace.topic(topic) for topic in compacted]):
            latest[record.topic, record.partition, record.key or b""] = record
        total = blake2b(digest_size=16)
        for place, record in sorted(latest.items()):
            total.update(repr((place, record.value)).encode())
        return total.hexdigest()

    def rebuild(self) -> float:
        """Delete every local folder and start the decider from nothing; returns the seconds until it decides."""
        for decider in self.deciders:
            decider.stop()
        for data in self.folder.glob("data-*"):
            shutil.rmtree(data, ignore_errors=True)
        before = self._log_of("decider-0").count("takeover.done")
        began = time.monotonic()
        self.deciders[0].start()
        self._until(
            lambda: self._log_of("decider-0").count("takeover.done") >= before + PARTITIONS, 60, "the cold restore"
        )
        return time.monotonic() - began

    def close(self) -> None:
        for role in {id(role): role for role in (*self.roles.values(), *self.deciders)}.values():
            role.stop()
        if hasattr(self, "client"):
            self.client.close()
        admin = self.log.admin()
        admin.delete([topic for topic in admin.topics() if topic.startswith(f"{self.name}.")])

    def _log_of(self, role: str) -> str:
        file = self.folder / f"{role}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def _until(self, is_so: Any, seconds: float, what: str, *, pause: float = 0.2) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come within {seconds:g} s; logs in {self.folder}")
            time.sleep(pause)


def run(bootstrap: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The whole story; the result has ``ok``."""
    chaos = Chaos(bootstrap, folder, options)
    try:
        chaos.prepare()
        began = time.monotonic()
        load = threading.Thread(target=chaos.submit, daemon=True)
        load.start()
        chaos.kill()
        load.join(options.seconds + 120)
        calm_seconds = chaos.calm()
        seconds = time.monotonic() - began
        found = chaos.check()
        before = chaos.digest()
        restore_seconds = chaos.rebuild()
        time.sleep(2.0)
        after = chaos.digest()
        problems = {name: list(which) for name, which in found["problems"].items() if which}
        return {
            "ok": not problems and before == after,
            "workflows": len(chaos.started),
            "kills": {name: role.kills for name, role in chaos.roles.items()},
            "lost": len(found["problems"]["lost"]),
            "problems": {name: which[:5] for name, which in problems.items()},
            "statuses": found["statuses"],
            "attempts": found["attempts"],
            "timed_out": found["reasons"].get("RESPONSE_TIMEOUT", 0),
            "seconds": round(seconds, 1),
            "calm_seconds": round(calm_seconds, 1),
            "restore_seconds": round(restore_seconds, 1),
            "same_digest": before == after,
            "seed": options.seed,
            "deciders": options.deciders,
            "broker_defaults": options.broker_defaults,
        }
    finally:
        chaos.close()


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="per role (default 20)")
    parser.add_argument("--workflows", type=int, default=5_000, help="(default 5000)")
    parser.add_argument("--seconds", type=float, default=0.0, help="of load; 6 per kill of a role by default")
    parser.add_argument("--deciders", type=int, choices=(1, 2), default=1, help="2: a second one joins and leaves")
    parser.add_argument("--broker-defaults", action="store_true", help="with the broker's own settings, not the quick")
    parser.add_argument("--bootstrap", help="a broker that runs already (default: one of its own)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    options.seconds = options.seconds or 6.0 * options.kills
    return options


def main() -> int:
    options = options_of()
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        if options.bootstrap:
            result = run(options.bootstrap, Path(folder), options)
        else:
            with LocalBroker.start(Path(folder) / "kafka", broker_defaults=options.broker_defaults) as broker:
                result = run(broker.bootstrap, Path(folder), options)
    for name, value in result.items():
        print(f"{name:>16}: {value}")
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
