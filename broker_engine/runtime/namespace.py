"""Creating a namespace and refusing one that would lose or duplicate work."""

from __future__ import annotations

from collections.abc import Mapping

from broker_engine.errors import UnsafeSettings
from broker_engine.log.namespaces import check_key, read_record
from broker_engine.log.ports import Log, NewTopic
from broker_engine.topics import CONTROL_SPEC, SCHEDULE_SPEC, Namespace, Topic, TopicSpec
from broker_engine.wire.codecs import NAMESPACE
from broker_engine.wire.records import NamespaceRecord
from broker_engine.wire.signing import Signer

#: Settings that are checked for equality; the others of a spec are advice.
_EXACT = ("cleanup.policy", "message.timestamp.type")
#: Settings that may be larger than ours but not smaller (-1 is unlimited).
_AT_LEAST = ("retention.ms", "delete.retention.ms")
#: A broker that has just made fifty topics answers late.
_WRITE_SECONDS = 30.0


def ensure(log: Log, namespace: Namespace, *, partitions: int, signer: Signer, now_ms: int) -> NamespaceRecord:
    """Create what is missing of a namespace, check what is there, and return its record.

    The partition count of an existing namespace is its record's; ``partitions`` matters only for a new one.

    Raises:
        UnsafeSettings: a topic or the key does not fit; the message lists every problem and its remedy.
    """
    existing = read_record(log, namespace)
    record = existing or NamespaceRecord(
        name=namespace.name, partitions=partitions, created_at_ms=now_ms, key_hash=signer.key_hash()
    )
    check_key(record, signer)
    admin = log.admin()
    try:
        admin.create(
            NewTopic(name=name, partitions=spec.partitions or record.partitions, config=spec.config)
            for name, spec in namespace.fixed_topics().items()
        )
    finally:
        admin.close()
    verify(log, namespace, record)
    if existing is None:
        writer = log.writer(client_id=f"{namespace.name}.namespace")
        writer.send(namespace.topic(Topic.NAMESPACE), 0, namespace.name.encode(), NAMESPACE.encode(record))
        left = writer.flush(_WRITE_SECONDS)
        writer.close()
        if left:
            raise UnsafeSettings("the namespace record could not be written; is the cluster healthy?")
    return record


def verify(log: Log, namespace: Namespace, record: NamespaceRecord) -> None:
    """Compare every topic of the namespace with the catalogue.

    Raises:
        UnsafeSettings: listing every problem and how to mend it.
    """
    problems = problems_of(log, namespace, record)
    if problems:
        raise UnsafeSettings("this namespace is not safe to run: " + "; ".join(problems))


def problems_of(log: Log, namespace: Namespace, record: NamespaceRecord) -> list[str]:
    """What is wrong with the topics of a namespace, a sentence with a remedy each."""
    admin = log.admin()
    try:
        existing = admin.topics()
        specs: dict[str, TopicSpec] = dict(namespace.fixed_topics())
        queues = {name for name in existing if namespace.is_schedule(name)}
        missing = sorted(name for name in specs if name not in existing)
        controls = {name for name in existing if namespace.control_domain(name) is not None}
        configs = admin.configs([name for name in (*specs, *queues, *controls) if name in existing])
    finally:
        admin.close()
    problems = [f"topic {name} is missing: run `broker-engine topics apply`" for name in missing]
    for name, spec in specs.items():
        if name in existing:
            wanted = spec.partitions or record.partitions
            if existing[name] != wanted:
                problems.append(
                    f"topic {name} has {existing[name]} partitions, the namespace was made with {wanted}: "
                    f"restore it (keys would move to other partitions)"
                )
            problems += _config_problems(name, spec, configs[name])
    for name in sorted(queues):
        problems += _config_problems(name, SCHEDULE_SPEC, configs[name])
    for name in sorted(controls):
        problems += _config_problems(name, CONTROL_SPEC, configs[name])
    return problems


def _config_problems(name: str, spec: TopicSpec, actual: Mapping[str, str]) -> list[str]:
    problems = []
    for key in _EXACT:
        wanted = spec.config.get(key)
        if wanted is not None and _normal(actual.get(key, "")) != _normal(wanted):
            problems.append(f"topic {name} has {key}={actual.get(key)}, it must be {wanted}: alter the topic")
    for key in _AT_LEAST:
        wanted, found = spec.config.get(key), actual.get(key, "-1")
        if wanted is not None and found != "-1" and int(found) < int(wanted):
            problems.append(f"topic {name} has {key}={found}, it must be at least {wanted}: raise it")
    return problems


def _normal(value: str) -> str:
    return ",".join(sorted(part.strip() for part in value.split(",")))
