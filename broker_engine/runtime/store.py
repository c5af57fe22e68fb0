"""Finished workflows on local disk: a cache of what the compacted topics hold, one folder per partition and process.

Live workflows are in memory; a finished one is only looked at again when something late arrives for it, and removed
when its retention ends. Records stay encoded. The folder is made anew at each takeover, so nothing in it can be stale.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

_WORKFLOW, _TASK, _ENDED = b"w", b"t", b"e"


def _task_key(workflow_id: str, task_id: str) -> bytes:
    return _TASK + workflow_id.encode() + b"\0" + task_id.encode()


def _ended_key(ended_at_ms: int, workflow_id: str) -> bytes:
    return _ENDED + ended_at_ms.to_bytes(8, "big") + workflow_id.encode()


class FinishedStore:
    """Encoded states of the finished workflows of one partition."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = Rdict(str(folder), options)
        unlogged = WriteOptions()
        # A cache that is made anew at every takeover needs no log of its own.
        unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # a property; the stub says method
        self._db.set_write_options(unlogged)
        self._batch: WriteBatch | None = None

    def put_workflow(self, workflow_id: str, value: bytes, ended_at_ms: int) -> None:
        batch = self._open_batch()
        batch.put(_WORKFLOW + workflow_id.encode(), value)
        batch.put(_ended_key(ended_at_ms, workflow_id), b"")

    def put_task(self, workflow_id: str, task_id: str, value: bytes) -> None:
        self._open_batch().put(_task_key(workflow_id, task_id), value)

    def remove_workflow(self, workflow_id: str) -> None:
        """Forget the workflow record (a new run begins, or its retention ended); its tasks stay until removed."""
        self._open_batch().delete(_WORKFLOW + workflow_id.encode())

    def remove_task(self, workflow_id: str, task_id: str) -> None:
        self._open_batch().delete(_task_key(workflow_id, task_id))

    def remove_ended(self, ended_at_ms: int, workflow_id: str) -> None:
        self._open_batch().delete(_ended_key(ended_at_ms, workflow_id))

    def workflow(self, workflow_id: str) -> bytes | None:
        self.flush()
        value: bytes | None = self._db.get(_WORKFLOW + workflow_id.encode())
        return value

    def task(self, workflow_id: str, task_id: str) -> bytes | None:
        self.flush()
        value: bytes | None = self._db.get(_task_key(workflow_id, task_id))
        return value

    def task_ids(self, workflow_id: str) -> list[str]:
        prefix = _TASK + workflow_id.encode() + b"\0"
        return [key[len(prefix) :].decode() for key in self._keys(prefix)]

    def ended_before(self, moment_ms: int, limit: int) -> list[tuple[int, str]]:
        """Up to ``limit`` workflows that ended before a moment, the earliest first, as (ended at, workflow id)."""
        found: list[tuple[int, str]] = []
        for key in self._keys(_ENDED):
            ended_at_ms = int.from_bytes(key[1:9], "big")
            if ended_at_ms >= moment_ms or len(found) == limit:
                break
            found.append((ended_at_ms, key[9:].decode()))
        return found

    def flush(self) -> None:
        """Apply what was put since the last flush."""
        if self._batch is not None and not self._batch.is_empty():
            self._db.write(self._batch)
        self._batch = None

    def close(self) -> None:
        """Drop the folder. Idempotent."""
        self._batch = None
        self._db.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _open_batch(self) -> WriteBatch:
        if self._batch is None:
            self._batch = WriteBatch(raw_mode=True)
        elif self._batch.len() >= 2_000:
            self.flush()
            self._batch = WriteBatch(raw_mode=True)
        return self._batch

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        self.flush()
        for key in self._db.keys(from_key=prefix):
            assert isinstance(key, bytes)
            if not key.startswith(prefix):
                return
            yield key
