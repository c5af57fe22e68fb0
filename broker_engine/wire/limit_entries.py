"""The limiter's entries as the flat records of ``<ns>.limit-state``."""

from __future__ import annotations

from broker_engine.model.slots import Entry, Line
from broker_engine.wire.records import LimitEntry


def to_record(entry: Entry) -> LimitEntry:
    return LimitEntry(
        stage=entry.stage,
        task_id=entry.task_id,
        hand_out=entry.hand_out,
        workflow_id=entry.workflow_id,
        reference=entry.reference,
        task_type=entry.line.task_type,
        domain=entry.line.domain,
        tenant=entry.line.tenant,
        resource=entry.line.resource,
        priority=entry.priority,
        asked_at_ms=entry.asked_at_ms,
        start_before_ms=entry.start_before_ms,
        started_at_ms=entry.started_at_ms,
        ask_at_ms=entry.ask_at_ms,
    )


def from_record(record: LimitEntry) -> Entry:
    return Entry(
        stage=record.stage,
        task_id=record.task_id,
        hand_out=record.hand_out,
        workflow_id=record.workflow_id,
        reference=record.reference,
        line=Line(record.task_type, record.domain, record.tenant, record.resource),
        priority=record.priority,
        asked_at_ms=record.asked_at_ms,
        start_before_ms=record.start_before_ms,
        started_at_ms=record.started_at_ms,
        ask_at_ms=record.ask_at_ms,
    )
