"""Questions to the cluster, and making topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic as KafkaNewTopic

from broker_engine.errors import Retriable, Unreachable
from broker_engine.log.confluent.client import (
    ADMIN_ATTEMPT,
    ADMIN_TIMEOUT,
    RETRY_PAUSE,
    Health,
    from_kafka,
    made,
    translate,
)
from broker_engine.log.ports import CommittedOffset, Isolation, Member, NewTopic, TopicPartition

K = TypeVar("K")
V = TypeVar("V")

# The client declares no types for these two.
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


class ConfluentAdmin:
    """ports.Admin. Keeps its client until closed: a collected one fails its pending answers, or
    never answers.
    """

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._health = Health("admin")
        # The default of 100 ms is slept before each repeat, for example after "coordinator is
        # loading".
        own = {"client.id": "admin", "retry.backoff.ms": 10}
        self._client = made(AdminClient, conf, own, health=self._health)

    def topics(self) -> dict[str, int]:
        found = self._bounded(lambda timeout: self._client.list_topics(timeout=timeout))
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        if not resources:
            return {}
        found = self._answers(lambda timeout: self._client.describe_configs(resources, request_timeout=timeout))
        return {
            resource.name: {name: entry.value or "" for name, entry in entries.items()}
            for resource, entries in found.items()
        }

    def create(self, topics: Iterable[NewTopic]) -> None:
        wanted = [KafkaNewTopic(t.name, num_partitions=t.partitions, config=dict(t.config)) for t in topics]
        if wanted:
            self._answers(
                lambda timeout: self._client.create_topics(wanted, request_timeout=timeout),
                ignore=KafkaError.TOPIC_ALREADY_EXISTS,
            )
            names = {t.topic for t in wanted}
            self._until(lambda: names <= self._ready_topics(), "the new topics to appear")

    def delete(self, topics: Iterable[str]) -> None:
        names = list(topics)
        if names:
            self._answers(
                lambda timeout: self._client.delete_topics(names, request_timeout=timeout),
                ignore=KafkaError.UNKNOWN_TOPIC_OR_PART,
            )
            self._until(lambda: self._ready_topics().isdisjoint(names), "the deleted topics to go")

    def end_offsets(self, partitions: Iterable[TopicPartition], isolation: Isolation) -> dict[TopicPartition, int]:
        return self._offsets(partitions, _LATEST, isolation)

    def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, _EARLIEST, Isolation.UNCOMMITTED)

    def committed(
        self, group: str, partitions: Iterable[TopicPartition], *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset | None]:
        request = ConsumerGroupTopicPartitions(group, [KafkaPartition(*tp) for tp in partitions])
        if not request.topic_partitions:
            return {}
        found = self._answers(
            lambda timeout: self._client.list_consumer_group_offsets(
                [request], require_stable=require_stable, request_timeout=timeout
            )
        )[group]
        offsets: dict[TopicPartition, CommittedOffset | None] = {}
        for p in found.topic_partitions:
            if p.error is not None:
                raise translate(p.error)
            known = p.offset != OFFSET_INVALID
            offsets[TopicPartition(p.topic, p.partition)] = (
                CommittedOffset(p.offset, p.metadata or "") if known else None
            )
        return offsets

    def members(self, group: str) -> list[Member]:
        found = self._answers(
            lambda timeout: self._client.describe_consumer_groups([group], request_timeout=timeout),
            ignore=KafkaError.GROUP_ID_NOT_FOUND,
        )
        return [
            Member(
                member.client_id,
                tuple(from_kafka(member.assignment.topic_partitions)) if member.assignment else (),
            )
            for description in found.values()
            for member in description.members
        ]

    def close(self) -> None:
        """Nothing to do: the client ends with this object, when no answer is pending."""

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        wanted = {KafkaPartition(tp.topic, tp.partition): spec for tp in partitions}
        if not wanted:
            return {}
        level = {
            Isolation.COMMITTED: IsolationLevel.READ_COMMITTED,
            Isolation.UNCOMMITTED: IsolationLevel.READ_UNCOMMITTED,
        }[isolation]
        found = self._answers(
            lambda timeout: self._client.list_offsets(wanted, isolation_level=level, request_timeout=timeout)
        )
        return {TopicPartition(p.topic, p.partition): int(at.offset) for p, at in found.items()}

    def _answers(self, ask: Callable[[float], Mapping[K, Future[Any]]], *, ignore: int | None = None) -> dict[K, Any]:
        """All answers to one request; those with the error ``ignore`` are left out."""

        def collect(timeout: float) -> dict[K, Any]:
            answers = {}
            for key, future in ask(timeout).items():
                try:
                    answers[key] = future.result(timeout + 1.0)
                except KafkaException as error:
                    if error.args[0].code() != ignore:
                        raise
            return answers

        return self._bounded(collect)

    def _bounded(self, ask: Callable[[float], V]) -> V:
        """Ask, and ask again while Kafka says so, for ADMIN_TIMEOUT in all."""
        deadline = time.monotonic() + ADMIN_TIMEOUT
        while True:
            try:
                answer = ask(ADMIN_ATTEMPT)
            except (KafkaException, TimeoutError) as error:
                self._client.poll(0)  # runs error_cb, the only place where a refused login shows
                self._health.check()
                meaning = translate(error.args[0]) if error.args else Retriable("no answer")
                if not isinstance(meaning, Retriable | Unreachable):
                    raise meaning from error
                if time.monotonic() >= deadline:
                    reason = error.args[0].str() if error.args else "no answer"
                    raise Unreachable(f"{reason}. {Unreachable()}") from error
                time.sleep(RETRY_PAUSE)
            else:
                self._health.answered()
                return answer

    def _ready_topics(self) -> set[str]:
        """Topics whose partitions all have a leader."""
        found = self._bounded(lambda timeout: self._client.list_topics(timeout=timeout))
        return {
            name
            for name, topic in found.topics.items()
            if topic.partitions and all(p.leader >= 0 for p in topic.partitions.values())
        }

    def _until(self, is_done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + ADMIN_TIMEOUT
        while not is_done():
            if time.monotonic() >= deadline:
                raise Retriable(f"Waited {ADMIN_TIMEOUT} s for {what}.")
            time.sleep(0.02)
