"""The read model: workflows, tasks and logs of the state topics in SQL, for searching and for quick looks.

A cache: it is rebuilt from the topics whenever it is lost, too old, or of another namespace. The positions up to which
the topics were read are written in the transaction of what was read, so a crash repeats or loses nothing. A row keeps
the record as it stands on its topic; the other columns are there to be searched.

SQLite in the data folder by default; with a PostgreSQL URL several gateways may share one: a row is only replaced by a
later record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import structlog
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from broker_engine.errors import NotFound, UnsafeSettings
from broker_engine.log.ports import TopicPartition
from broker_engine.model.state import TaskState, WorkflowState, present
from broker_engine.topics import DELETE_RETENTION_MS
from broker_engine.wire.codecs import TASK_STATE, WORKFLOW_STATE

_log = structlog.get_logger(__name__)

#: Raised when the tables change: an older model is rebuilt.
FORMAT = "1"
#: A copy that was not written for so long may lack deletions whose tombstones are gone.
MAX_AGE_MS = DELETE_RETENTION_MS // 2
#: What `freeText` can find of one row.
_TEXT_CHARACTERS = 4_000
#: SQLite takes 32,766 values in a statement.
_KEYS_AT_A_TIME = 5_000
#: Log lines of a task that can be read; older ones go first.
MAX_LOGS = 1_000

_metadata = MetaData()

workflows = Table(
    "workflows",
    _metadata,
    Column("workflow_id", String, primary_key=True),
    Column("log_offset", BigInteger, nullable=False),
    Column("name", String, nullable=False, index=True),
    Column("version", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("correlation_id", String, index=True),
    Column("priority", Integer, nullable=False),
    Column("created_by", String),
    Column("tenant", String),
    Column("idempotency_key", String),
    Column("reason", Text),
    Column("start_time", BigInteger, nullable=False, index=True),
    Column("update_time", BigInteger, nullable=False),
    Column("end_time", BigInteger),
    Column("text", Text, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Index("workflows_by_status", "status", "start_time"),
)
tasks = Table(
    "tasks",
    _metadata,
    Column("task_id", String, primary_key=True),
    Column("log_offset", BigInteger, nullable=False),
    Column("workflow_id", String, nullable=False, index=True),
    Column("workflow_name", String, nullable=False),
    Column("run", Integer, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("reference", String, nullable=False),
    Column("task_type", String, nullable=False),
    Column("domain", String, nullable=False),
    Column("phase", String, nullable=False),
    Column("status", String, nullable=False),
    Column("waiting_for", String),
    Column("worker_id", String),
    Column("scheduled_time", BigInteger),
    Column("start_time", BigInteger),
    Column("update_time", BigInteger, nullable=False),
    Column("end_time", BigInteger),
    Column("text", Text, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Index("tasks_by_queue", "task_type", "domain", "status"),
)
snapshots = Table(
    "snapshots",
    _metadata,
    Column("content_hash", String, primary_key=True),
    Column("log_offset", BigInteger, nullable=False),
    Column("document", LargeBinary, nullable=False),
)
logs = Table(
    "logs",
    _metadata,
    Column("partition", Integer, primary_key=True),
    Column("log_offset", BigInteger, primary_key=True),
    Column("task_id", String, nullable=False, index=True),
    Column("created_at", BigInteger, nullable=False),
    Column("line", Text, nullable=False),
)
_positions = Table(
    "positions",
    _metadata,
    Column("topic", String, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("log_offset", BigInteger, nullable=False),
)
_facts = Table("facts", _metadata, Column("name", String, primary_key=True), Column("value", String, nullable=False))

Row = dict[str, Any]


class Page(NamedTuple):
    """One page of what was found, and how many there are in all."""

    total: int
    values: list[bytes]


class Changes(NamedTuple):
    """What a batch of records means: rows to put (the last of a key), keys to remove."""

    put: dict[Table, dict[Any, Row]]
    removed: dict[Table, dict[Any, int]]

    @classmethod
    def none(cls) -> Changes:
        return cls({}, {})

    def keep(self, table: Table, key: Any, row: Row) -> None:
        self.removed.get(table, {}).pop(key, None)
        self.put.setdefault(table, {})[key] = row

    def remove(self, table: Table, key: Any, offset: int) -> None:
        self.put.get(table, {}).pop(key, None)
        self.removed.setdefault(table, {})[key] = offset


class ReadModel:
    """The tables; written by one thread, read by any."""

    def __init__(self, url: str) -> None:
        """``url``: as SQLAlchemy reads it, ``sqlite:///FILE`` or ``postgresql+psycopg://…``.

        Raises:
            UnsafeSettings: there is no such database, or no driver for it.
        """
        self._lock = threading.Lock()
        try:
            self._engine: Engine = create_engine(url)
        except (SQLAlchemyError, ImportError) as error:
            raise UnsafeSettings(
                f"the read model cannot be opened: {error}. PostgreSQL needs a driver: pip install 'psycopg[binary]', "
                f"then postgresql+psycopg://USER@HOST/DATABASE"
            ) from error
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _tune)

    @property
    def _insert(self) -> Any:  # the two dialects' inserts share no type that knows on_conflict_do_update
        return postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert

    def open(self, origin: str, ends: Mapping[TopicPartition, int], now_ms: int) -> dict[TopicPartition, int]:
        """Make the tables, or empty them when they are of no use; the positions to read on from.

        Args:
            origin: names the namespace and when it was made: another one's rows are dropped.
            ends: where the topics end now; a position beyond is of a topic that was made anew.
            now_ms: epoch milliseconds.
        """
        _metadata.create_all(self._engine)
        with self._engine.begin() as connection:
            facts = {row.name: row.value for row in connection.execute(select(_facts))}
            positions = {
                TopicPartition(row.topic, row.partition): row.log_offset
                for row in connection.execute(select(_positions))
            }
            useless = _useless(facts, origin, positions, ends, now_ms)
            if useless is not None:
                if facts:
                    _log.warning("gateway.read_model_discarded", reason=useless)
                for table in _metadata.sorted_tables:
                    connection.execute(delete(table))
                positions = {}
            self._put(connection, _facts, [{"name": "format", "value": FORMAT}, {"name": "origin", "value": origin}])
            self._put(connection, _facts, [{"name": "written_at_ms", "value": str(now_ms)}])
        return positions

    def write(self, changes: Changes, positions: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Take in a batch and how far the topics were read with it, in one transaction."""
        with self._lock, self._engine.begin() as connection:
            for table, rows in changes.put.items():
                self._put(connection, table, list(rows.values()))
            for table, keys in changes.removed.items():
                self._remove(connection, table, list(keys))
            rows = {
                str(tp): {"topic": tp.topic, "partition": tp.partition, "log_offset": offset}
                for tp, offset in positions.items()
            }
            self._put(connection, _positions, list(rows.values()))
            self._put(connection, _facts, [{"name": "written_at_ms", "value": str(now_ms)}])

    def _put(self, connection: Connection, table: Table, rows: Sequence[Row]) -> None:
        if not rows:
            return
        statement = self._insert(table)
        keys = [column.name for column in table.primary_key]
        others = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
        where = statement.excluded.log_offset >= table.c.log_offset if "log_offset" in others else None
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=others, where=where), list(rows))

    def _remove(self, connection: Connection, table: Table, keys: Sequence[Any]) -> None:
        column = next(iter(table.primary_key))
        for first in range(0, len(keys), _KEYS_AT_A_TIME):
            some = keys[first : first + _KEYS_AT_A_TIME]
            connection.execute(delete(table).where(column.in_(some)))
            if table is tasks:
                connection.execute(delete(logs).where(logs.c.task_id.in_(some)))

    # --- looking

    def workflow(self, workflow_id: str) -> WorkflowState:
        """Raises: NotFound."""
        value = self._one(select(workflows.c.value).where(workflows.c.workflow_id == workflow_id))
        if value is None:
            raise NotFound(f"there is no workflow {workflow_id}")
        return WORKFLOW_STATE.decode(value)

    def task(self, task_id: str) -> TaskState:
        """Raises: NotFound."""
        value = self._one(select(tasks.c.value).where(tasks.c.task_id == task_id))
        if value is None:
            raise NotFound(f"there is no task {task_id}")
        return TASK_STATE.decode(value)

    def tasks_of(self, workflow: WorkflowState) -> list[TaskState]:
        """The attempts of a workflow's present run, in order."""
        of_it = (tasks.c.workflow_id == workflow.workflow_id, tasks.c.run >= workflow.from_run)
        return present(workflow, map(TASK_STATE.decode, self._all(select(tasks.c.value).where(*of_it))))

    def snapshot(self, content_hash: str) -> bytes | None:
        """The definition that a workflow runs by."""
        return self._one(select(snapshots.c.document).where(snapshots.c.content_hash == content_hash))

    def find(
        self, table: Table, where: Iterable[ColumnElement[bool]], order: Iterable[Any], start: int, size: int
    ) -> Page:
        """The records of the rows that satisfy every condition."""
        conditions = list(where)
        key = next(iter(table.primary_key))
        with self._engine.connect() as connection:
            total = connection.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one()
            query = select(table.c.value).where(*conditions).order_by(*order, key).offset(start).limit(size)
            return Page(total, [bytes(value) for value in connection.execute(query).scalars()])

    def log_lines(self, task_id: str) -> list[tuple[int, str]]:
        """(moment, text) of the newest lines of a task, the oldest first."""
        query = select(logs.c.created_at, logs.c.line).where(logs.c.task_id == task_id)
        with self._engine.connect() as connection:
            found = connection.execute(query.order_by(logs.c.log_offset.desc()).limit(MAX_LOGS))
            return [(row.created_at, row.line) for row in found][::-1]

    def waiting(self) -> dict[tuple[str, str], int]:
        """How many tasks stand on each queue (domain, task type)."""
        query = (
            select(tasks.c.domain, tasks.c.task_type, func.count())
            .where(tasks.c.status == "SCHEDULED")
            .group_by(tasks.c.domain, tasks.c.task_type)
        )
        with self._engine.connect() as connection:
            return {(domain, task_type): count for domain, task_type, count in connection.execute(query)}

    def close(self) -> None:
        self._engine.dispose()

    def _one(self, query: Any) -> bytes | None:
        with self._engine.connect() as connection:
            value = connection.execute(query).scalar()
            return None if value is None else bytes(value)

    def _all(self, query: Any) -> list[bytes]:
        with self._engine.connect() as connection:
            return [bytes(value) for value in connection.execute(query).scalars()]


def workflow_row(state: WorkflowState, value: bytes, offset: int) -> Row:
    return {
        "workflow_id": state.workflow_id,
        "log_offset": offset,
        "name": state.name,
        "version": state.version,
        "status": state.status.value,
        "correlation_id": state.correlation_id,
        "priority": state.priority,
        "created_by": state.created_by,
        "tenant": state.tenant,
        "idempotency_key": state.idempotency_key,
        "reason": state.reason,
        "start_time": state.created_at_ms,
        "update_time": state.updated_at_ms,
        "end_time": state.ended_at_ms,
        "text": _text(
            state.workflow_id, state.name, state.correlation_id, state.status, state.reason, state.input, state.output
        ),
        "value": value,
    }


def task_row(task: TaskState, value: bytes, offset: int) -> Row:
    return {
        "task_id": task.task_id,
        "log_offset": offset,
        "workflow_id": task.workflow_id,
        "workflow_name": task.workflow_name,
        "run": task.run,
        "seq": task.seq,
        "reference": task.reference,
        "task_type": task.task_type,
        "domain": task.domain,
        "phase": task.phase.value,
        "status": task.status.value,
        "waiting_for": task.waiting_for.value if task.waiting_for is not None else None,
        "worker_id": task.worker_id,
        "scheduled_time": task.scheduled_at_ms,
        "start_time": task.started_at_ms,
        "update_time": task.updated_at_ms,
        "end_time": task.ended_at_ms,
        "text": _text(task.task_id, task.task_type, task.reference, task.workflow_id, task.status, task.reason),
        "value": value,
    }


def _text(*parts: str | bytes | None) -> str:
    """What `freeText` looks into, in lower case. User JSON may hold NUL, which PostgreSQL's text may not."""
    texts = (part.decode(errors="replace") if isinstance(part, bytes) else part for part in parts if part)
    return " ".join(text[:_TEXT_CHARACTERS] for text in texts).lower().replace("\x00", "")[: 2 * _TEXT_CHARACTERS]


def _useless(
    facts: Mapping[str, str],
    origin: str,
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    now_ms: int,
) -> str | None:
    """Why what is there must not be used."""
    if facts.get("format") != FORMAT:
        return "it was written by another release"
    if facts.get("origin") != origin:
        return "it is of another namespace"
    age_ms = now_ms - int(facts.get("written_at_ms", 0))
    if age_ms > MAX_AGE_MS:
        return f"it is {age_ms // 1_000} s old: removed workflows would come back"
    ahead = [tp for tp, offset in positions.items() if offset > ends.get(tp, 0)]
    return f"{ahead[0].topic} was made anew" if ahead else None


def _tune(connection: Any, _record: Any) -> None:  # a DBAPI connection
    """Readers do not wait for the writer, and nobody waits for the disk: what a crash of the machine takes is read from
    the topics again."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=OFF")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()
