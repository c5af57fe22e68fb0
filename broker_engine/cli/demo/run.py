"""The import itself: start a workflow per chunk, never too many at once, and kill two processes on the way."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live

from broker_engine.cli.demo.notifier import Notifier
from broker_engine.cli.demo.progress import Progress
from broker_engine.cli.demo.rows import Chunk, Source
from broker_engine.cli.demo.tasks import REFERENCE, TABLE, WORKFLOW, connect, import_csv
from broker_engine.cli.demo.verdict import Verdict, judge
from broker_engine.cli.roles import Stopping
from broker_engine.errors import BrokerEngineError, NoAnswer
from broker_engine.log.ports import Log
from broker_engine.runtime.dev import Role, Supervisor
from broker_engine.topics import Namespace
from broker_engine.worker import Client
from broker_engine.worker.replies import Answered

#: Workflows under way at a time: the usual back-pressure of an importer. Of a small file less, so that kills hit work.
WINDOW = 60
#: Every so many-th chunk finds the notifier busy.
BUSY_EVERY = 7
#: How long the one slow chunk takes to parse: enough to find and kill its worker, less than its response time-out.
SLOW_SECONDS = 3.0
#: Without any progress for this long, something is wrong. The longest honest pause is a takeover or a time-out: ~10 s.
PATIENCE_SECONDS = 60.0
DECIDERS, WORKERS = 2, 2


class DemoFailed(BrokerEngineError):
    """The demo could not be carried through."""


def roles(folder: Path) -> list[Role]:
    """The processes of the demo."""
    return [
        *(
            Role(name=f"decider-{slot}", arguments=("decider", "--slot", str(slot), "--data", str(folder / "decider")))
            for slot in range(DECIDERS)
        ),
        Role(name="delays", arguments=("delays",)),
        *(
            Role(name=f"worker-{number}", arguments=("worker", "broker_engine.cli.demo.tasks", "--grace", "5"))
            for number in range(WORKERS)
        ),
    ]


@dataclass(slots=True, kw_only=True)
class Import:
    """One run of the demo, on a cluster where the roles are running."""

    log: Log
    namespace: Namespace
    supervisor: Supervisor
    stopping: Stopping
    source: Source
    folder: Path
    console: Console
    prefix: str = field(default_factory=lambda: f"import-{uuid.uuid4().hex[:6]}")
    kills: int = 0
    _starts: list[Future[Answered]] = field(default_factory=list)
    _live: Live | None = None
    _next_line: float = 0.0
    _last_news: tuple[float, int] = (0.0, -1)

    @property
    def database(self) -> Path:
        return self.folder / "airports.sqlite"

    def workflow_id(self, chunk: Chunk) -> str:
        return f"{self.prefix}-{chunk.number:04d}"

    def run(self) -> tuple[Verdict, Progress]:
        """Import everything.

        Raises:
            DemoFailed: it came to a standstill or was interrupted.
        """
        with closing(connect(self.database)) as connection, connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(TABLE)
        chunks = self.source.chunks
        busy = frozenset(self.workflow_id(chunk) for chunk in chunks if chunk.number % BUSY_EVERY == 3)
        with self._client() as client, Notifier(busy) as notifier:
            self._register(client)
            self._await_deciders()
            progress = Progress(self.log, self.namespace, client.partitions, self.prefix)
            with closing(progress), self._shown():
                self._start_all(client, notifier, progress)
                while progress.ended < len(chunks):
                    self._tick(progress)
                while progress.workflows.keys() - {task.workflow_id for task in progress.tasks.values()}:
                    self._tick(progress)  # a task's record may be read a moment after its workflow's
                self._draw(progress)
            verdict = judge(self.source, progress, notifier, self.database, self.kills)
        return verdict, progress

    # --- the steps

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """A client, as soon as a decider has made the namespace."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                client = Client(self.log, self.namespace)
                break
            except BrokerEngineError as error:
                if time.monotonic() > deadline or self.stopping.is_asked:
                    raise DemoFailed(f"no decider came up: {error}") from error
                self.supervisor.watch()
                self.stopping.wait(0.3)
        with client:
            yield client

    def _register(self, client: Client) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                client.register_task(import_csv.definition or {})
                client.register_workflow(WORKFLOW, overwrite=True)
            except NoAnswer:  # the first decider may still be taking over
                self.supervisor.watch()
                if time.monotonic() > deadline or self.stopping.is_asked:
                    raise
            else:
                return

    def _await_deciders(self) -> None:
        """Wait until every decider holds partitions, so that the one that is killed is missed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        admin = self.log.admin()
        try:
            while sum(bool(m.partitions) for m in admin.members(self.namespace.engine_group)) < DECIDERS:
                if time.monotonic() > deadline or self.stopping.is_asked:
                    raise DemoFailed(f"{DECIDERS} deciders did not come up")
                self.supervisor.watch()
                self.stopping.wait(0.2)
        finally:
            admin.close()

    def _start_all(self, client: Client, notifier: Notifier, progress: Progress) -> None:
        count = len(self.source.chunks)
        window = min(WINDOW, max(count // 4, 1))
        decider_dies_at, slow_one = count // 3, 2 * count // 3
        for chunk in self.source.chunks:
            while progress.started - progress.ended >= window:
                self._tick(progress)
            workflow_input = {
                "file": str(chunk.file),
                "database": str(self.database),
                "notifier": notifier.url,
                "pauseSeconds": SLOW_SECONDS if chunk.number == slow_one else 0.0,
            }
            start = client.start_async(WORKFLOW["name"], workflow_input, workflow_id=self.workflow_id(chunk))
            self._starts.append(start)
            progress.started += 1
            if chunk.number == decider_dies_at:
                self._kill(f"decider-{DECIDERS - 1}", progress)
            if chunk.number == slow_one:
                self._kill_worker_of(self.workflow_id(chunk), progress)

    def _kill_worker_of(self, workflow_id: str, progress: Progress) -> None:
        """Kill the worker that parses the slow chunk, while it does."""
        while (task := progress.running(workflow_id, REFERENCE)) is None or task.current_step != "PARSE":
            self._tick(progress)
        pid = int((task.worker_id or "").rsplit("-", 2)[1])  # host-pid-random
        name = next((name for name, known in self.supervisor.pids.items() if known == pid), None)
        if name is None:
            raise DemoFailed(f"worker {task.worker_id} is none of ours")
        self._kill(name, progress, f" while it parses {workflow_id}")

    def _kill(self, name: str, progress: Progress, what: str = "") -> None:
        pid = self.supervisor.kill(name)
        self.kills += 1
        self._tell(progress, f"kill -9 {pid} ({name}){what}")

    # --- meanwhile

    def _tick(self, progress: Progress) -> None:
        """Read what happened, keep the roles running, show it."""
        before = self.supervisor.restarts
        self.supervisor.watch()
        for name, count in self.supervisor.restarts.items():
            if count > before[name]:
                self._tell(progress, f"{name} started again (pid {self.supervisor.pids.get(name)})")
        progress.read(0.05)
        self._draw(progress)
        for start in [start for start in self._starts if start.done()]:
            self._starts.remove(start)
            answer = start.result()
            if answer.status >= 400:
                raise DemoFailed(f"a start was refused: {answer.message}")
        self._check_progress(progress)

    def _check_progress(self, progress: Progress) -> None:
        if self.stopping.is_asked:
            raise DemoFailed("interrupted")
        now, steps = time.monotonic(), progress.ended * 1_000_000 + len(progress.tasks)
        if steps != self._last_news[1]:
            self._last_news = (now, steps)
        elif now - self._last_news[0] > PATIENCE_SECONDS:
            raise DemoFailed(
                f"no progress for {PATIENCE_SECONDS:.0f} s, {progress.ended} of {progress.started} workflows ended"
            )

    @contextmanager
    def _shown(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, auto_refresh=False, transient=False) as self._live:
            yield
        self._live = None

    def _draw(self, progress: Progress) -> None:
        now, total = time.monotonic(), len(self.source.chunks)
        if now < self._next_line and progress.ended < total:
            return
        if self._live is not None:
            self._live.update(progress.picture(total), refresh=True)
            self._next_line = now + 0.1
        else:
            self.console.print(progress.line(total), markup=False)
            self._next_line = now + 2.0

    def _tell(self, progress: Progress, event: str) -> None:
        told = progress.tell(event)
        if self._live is None:
            self.console.print(told, markup=False)


def plain_console(*, to_stderr: bool) -> Console:
    """Where progress goes; lines in a file are not cut."""
    stream = sys.stderr if to_stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 1_000)
