"""Reading a namespace's record: its partition count and key fingerprint, which every role and client needs first."""

from __future__ import annotations

from broker_engine.errors import NotFound, UnsafeSettings
from broker_engine.log.ports import BEGINNING, Isolation, Log, TopicPartition
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import NAMESPACE
from broker_engine.wire.records import NamespaceRecord
from broker_engine.wire.signing import Signer


def read_record(log: Log, namespace: Namespace, *, timeout: float = 10.0) -> NamespaceRecord | None:
    """The namespace record, None when the namespace was not created yet."""
    tp = TopicPartition(namespace.topic(Topic.NAMESPACE), 0)
    admin = log.admin()
    try:
        if tp.topic not in admin.topics():
            return None
        end = admin.end_offsets([tp], Isolation.UNCOMMITTED)[tp]
    finally:
        admin.close()
    reader = log.reader()
    found: NamespaceRecord | None = None
    try:
        reader.assign({tp: BEGINNING})
        waited = 0.0
        while end and reader.position(tp) < end and waited < timeout:
            records = reader.read(100, 0.1)
            waited += 0.0 if records else 0.1
            for record in records:
                if record.key == namespace.name.encode():
                    found = NAMESPACE.decode(record.value)
    finally:
        reader.close()
    return found


def open_existing(log: Log, namespace: Namespace, signer: Signer) -> NamespaceRecord:
    """The record of a namespace that must exist already.

    Raises:
        NotFound: it does not.
        UnsafeSettings: the key is another one.
    """
    record = read_record(log, namespace)
    if record is None:
        raise NotFound(
            f"there is no namespace {namespace.name} on this cluster: start a decider, or choose another --ns"
        )
    check_key(record, signer)
    return record


def check_key(record: NamespaceRecord, signer: Signer) -> None:
    """Refuse a key that is not the namespace's.

    Raises:
        UnsafeSettings: it is another one, missing, or too much.
    """
    if record.key_hash != signer.key_hash():
        what = "has a key that this process was not given" if record.key_hash else "has no key, but one was given"
        if record.key_hash and signer.key_hash():
            what = "has another key than the one given"
        raise UnsafeSettings(f"namespace {record.name} {what}: set BROKER_ENGINE_NAMESPACE_KEY to the right one")
