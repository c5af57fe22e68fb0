"""One codec per record type: named tuple to framed bytes and back. ``CODECS`` is the whole list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, get_type_hints

from broker_engine.errors import DecodeError
from broker_engine.model.decision import Transition
from broker_engine.model.limits import MAX_RECORD_BYTES
from broker_engine.model.state import Message, RememberedCommand, Skip, Step, TaskState, WorkflowState
from broker_engine.wire.avro import compile_decoder, compile_encoder, enum_in
from broker_engine.wire.records import (
    Checkpoint,
    CommandRecord,
    Control,
    Definition,
    DefinitionSnapshot,
    DelayedCommand,
    Idempotency,
    LanePosition,
    LimitEntry,
    NamespaceRecord,
    Reply,
    ScheduledTask,
    StartResume,
    StartVerdict,
    TaskLog,
    TransitionEvent,
    WorkerPresence,
)
from broker_engine.wire.schemas import registered_schemas, versions

T = TypeVar("T", bound=tuple[Any, ...])

MAGIC = 0
FRAME_BYTES = 5


class Codec(Generic[T]):
    """Encodes with the newest schema of a subject, decodes with whichever schema the bytes name."""

    def __init__(self, kind: type[T], subject: str, nested: Mapping[str, Any] | None = None) -> None:
        self.kind = kind
        self.subject = subject
        self._newest = versions(subject)[-1]
        hints = get_type_hints(kind)
        fields = self._newest.plain["fields"]
        names = kind._fields  # type: ignore[attr-defined]  # T is a NamedTuple; the bound cannot say so
        self._kinds = {
            field["name"]: (nested or {}).get(name) or enum_in(hints[name])
            for field, name in zip(fields, names, strict=True)
        }
        self.frame = bytes([MAGIC]) + self._newest.id.to_bytes(4, "big")
        #: From tuple to framed bytes.
        self.encode: Callable[[T], bytes] = compile_encoder(self._newest.plain, self.frame)
        self._decoders: dict[bytes, Callable[[bytes, int], T]] = {}

    def decode(self, data: bytes | None) -> T:
        """The record in framed bytes.

        Raises:
            DecodeError: no bytes, an unknown frame, another record type, or damaged content.
        """
        if data is None:
            raise DecodeError(f"a {self.subject} record has no value")
        decoder = self._decoders.get(data[:FRAME_BYTES]) or self._decoder_for(data)
        try:
            return decoder(data, FRAME_BYTES)
        except (ValueError, IndexError, TypeError, KeyError) as error:
            raise DecodeError(f"a {self.subject} record is damaged: {error}") from error

    def _decoder_for(self, data: bytes) -> Callable[[bytes, int], T]:
        if len(data) < FRAME_BYTES or data[0] != MAGIC:
            raise DecodeError(
                f"not a framed Avro record of {self.subject}: it starts with {data[:5].hex() or 'nothing'}"
            )
        schema = registered_schemas().get(int.from_bytes(data[1:FRAME_BYTES], "big"))
        if schema is None or schema.subject != self.subject:
            what = schema.subject if schema else "unknown"
            raise DecodeError(f"schema id {int.from_bytes(data[1:5], 'big')} ({what}) is not of {self.subject}")
        decoder = compile_decoder(schema.plain, self._newest.plain, self.kind, self._kinds)
        self._decoders[data[:FRAME_BYTES]] = decoder
        return decoder


def is_too_large(value: bytes) -> bool:
    """Whether an encoded record is over the limit; asked before every send, so that no transaction fails on it."""
    return len(value) > MAX_RECORD_BYTES


COMMAND = Codec(CommandRecord, "command")
WORKFLOW_STATE = Codec(
    WorkflowState, "workflow-state", {"remembered": RememberedCommand, "messages": Message, "skips": Skip}
)
TASK_STATE = Codec(TaskState, "task-state", {"steps": Step})
EVENT = Codec(TransitionEvent, "transition-event", {"transitions": Transition})
SCHEDULED_TASK = Codec(ScheduledTask, "scheduled-task")
DELAYED_COMMAND = Codec(DelayedCommand, "delayed-command")
REPLY = Codec(Reply, "reply", {"verdicts": StartVerdict, "resumes": StartResume})
SNAPSHOT = Codec(DefinitionSnapshot, "definition-snapshot")
IDEMPOTENCY = Codec(Idempotency, "idempotency")
CHECKPOINT = Codec(Checkpoint, "checkpoint", {"starts": LanePosition})
LIMIT_ENTRY = Codec(LimitEntry, "limit-entry")
DEFINITION = Codec(Definition, "definition")
NAMESPACE = Codec(NamespaceRecord, "namespace")
PRESENCE = Codec(WorkerPresence, "worker-presence")
CONTROL = Codec(Control, "control")
TASK_LOG = Codec(TaskLog, "task-log")

CODECS: Mapping[str, Codec[Any]] = {
    codec.subject: codec
    for codec in (
        COMMAND,
        WORKFLOW_STATE,
        TASK_STATE,
        EVENT,
        SCHEDULED_TASK,
        DELAYED_COMMAND,
        REPLY,
        SNAPSHOT,
        IDEMPOTENCY,
        CHECKPOINT,
        LIMIT_ENTRY,
        DEFINITION,
        NAMESPACE,
        PRESENCE,
        CONTROL,
        TASK_LOG,
    )
}
