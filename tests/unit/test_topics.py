"""Names, partitions and policies of topics: as Java's client computes them, reversible, and safe."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_engine.errors import BadRequest
from broker_engine.model.limits import HAND_OUT_LIFETIME_MS, MAX_PAYLOAD_BYTES, MAX_RECORD_BYTES, SCHEDULE_RETENTION_MS
from broker_engine.model.names import MAX_ENCODED_NAME, decode_name, encode_name
from broker_engine.topics import (
    CATALOGUE,
    COMMANDS_RETENTION_MS,
    DELAY_TIERS,
    DELETE_RETENTION_MS,
    LAST_HOP,
    MAX_TOPIC_NAME,
    SCHEDULE_SPEC,
    START_LANES,
    TOLERATED_OUTAGE_MS,
    Namespace,
    Topic,
    delay_spec,
    murmur2,
    partition_of,
    tier_for,
)
from tests.builders import FIXED

LEGAL_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
#: Names that collide or break in careless encodings.
CONFUSABLE = [
    "",
    "a",
    "A",
    "-",
    "--",
    "_",
    "__",
    ".",
    "a.b",
    "a_b",
    "a-b",
    "a--b",
    "-2d",
    "2d",
    "-5f",
    "a:b@c",
    "ü",
    "日",
]


# --- partitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "java"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: str, java: int) -> None:
    """The vectors of Kafka's own UtilsTest, as signed 32-bit numbers."""
    unsigned = murmur2(key.encode())

    assert unsigned - (1 << 32 if unsigned >= 1 << 31 else 0) == java
    assert partition_of(key, 8) == (java & 0x7FFFFFFF) % 8


@FIXED
@given(st.binary(max_size=100))
def test_murmur2_is_an_unsigned_32_bit_number(key: bytes) -> None:
    assert 0 <= murmur2(key) < 1 << 32


@FIXED
@given(st.text(), st.integers(1, 100))
def test_a_key_has_one_partition(key: str, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, partitions) == partition_of(key, partitions)


def test_keys_spread_over_the_partitions() -> None:
    counts = [0] * 8
    for i in range(800):
        counts[partition_of(f"workflow-{i}", 8)] += 1

    assert min(counts) > 60, counts


# --- names ----------------------------------------------------------------------------------------


@FIXED
@given(st.text())
def test_any_name_can_be_spelled_and_read_back(name: str) -> None:
    assert decode_name(encode_name(name)) == name


@FIXED
@given(st.text())
def test_an_encoded_name_has_no_dot_and_no_underscore(name: str) -> None:
    """So two topics never differ only by these, which Kafka refuses, and ``.`` separates the parts."""
    assert re.fullmatch(r"[A-Za-z0-9-]*", encode_name(name))


def test_different_names_are_spelled_differently() -> None:
    encoded = [encode_name(name) for name in CONFUSABLE]

    assert len(set(encoded)) == len(CONFUSABLE)
    assert [decode_name(name) for name in encoded] == CONFUSABLE


@pytest.mark.parametrize(
    ("name", "encoded"),
    [("encode", "encode"), ("to_csv", "to--csv"), ("a-b", "a-2db"), ("ü", "-c3-bc")],
)
def test_usual_names_stay_readable(name: str, encoded: str) -> None:
    assert encode_name(name) == encoded


@FIXED
@given(st.text(max_size=9), st.text(max_size=9))
def test_a_queue_is_read_back_from_its_topic(domain: str, task_type: str) -> None:
    namespace = Namespace("engine")
    topic = namespace.schedule(domain, task_type)

    assert LEGAL_TOPIC.fullmatch(topic)
    assert namespace.queue_of(topic) == (domain, task_type)
    assert Namespace("other").queue_of(topic) is None


def test_other_topics_are_no_queues() -> None:
    namespace = Namespace("engine")

    assert [name for name in namespace.fixed_topics() if namespace.queue_of(name)] == []


def test_the_longest_allowed_parts_fit_into_a_topic_name() -> None:
    namespace = Namespace("n" * 60)

    topic = namespace.schedule("d" * 60, "t" * MAX_ENCODED_NAME)

    assert len(topic) <= MAX_TOPIC_NAME
    assert topic == f"{'n' * 60}.schedule.{'d' * 60}.{'t' * MAX_ENCODED_NAME}"


def test_a_topic_name_that_kafka_would_refuse_is_refused() -> None:
    with pytest.raises(BadRequest, match="Kafka allows 249"):
        Namespace("engine").schedule("default", "t" * 240)


@pytest.mark.parametrize("name", ["engine", "e", "E1-x", "n" * 60])
def test_a_namespace_is_letters_digits_and_dashes(name: str) -> None:
    assert Namespace(name).topic(Topic.COMMANDS) == f"{name}.commands"


@pytest.mark.parametrize("name", ["", "-x", "a.b", "a_b", "n" * 61, "a b", "ü"])
def test_other_namespaces_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="must be letters, digits"):
        Namespace(name)


def test_topics_of_one_namespace_never_collide_with_those_of_another() -> None:
    names = [set(Namespace(name).fixed_topics()) for name in ("a", "a-b", "ab")]

    assert len(set.union(*names)) == sum(map(len, names))
    for topic in set.union(*names):
        assert LEGAL_TOPIC.fullmatch(topic)
        assert "_" not in topic


def test_groups_and_transactional_ids_tell_namespace_and_queue_apart() -> None:
    namespace = Namespace("engine")
    names = {
        namespace.engine_group,
        namespace.transactional_id("0"),
        *(namespace.delays_group(tier) for tier in DELAY_TIERS),
        namespace.worker_group("d", "t"),
        namespace.worker_group("d.t", ""),
        namespace.worker_group("", "d.t"),
    }

    assert len(names) == 5 + len(DELAY_TIERS)


# --- tiers ----------------------------------------------------------------------------------------


def test_tiers_grow_by_about_four_from_a_quarter_minute_to_a_day() -> None:
    tiers = list(DELAY_TIERS.values())

    assert tiers == sorted(tiers)
    assert (tiers[0], tiers[1], tiers[-1]) == (0, 15_000, 86_400_000)
    assert all(3 <= larger / smaller <= 6 for smaller, larger in pairwise(tiers[1:]))


@pytest.mark.parametrize(
    ("rest_ms", "tier"),
    [
        (-5, "last"),
        (0, "last"),
        (14_999, "last"),
        (15_000, "15s"),
        (59_999, "15s"),
        (60_000, "1m"),
        (86_399_999, "4h"),
        (86_400_000, "1d"),
        (2**31 * 1_000, "1d"),
    ],
)
def test_a_delay_waits_in_the_largest_tier_that_fits(rest_ms: int, tier: str) -> None:
    assert tier_for(rest_ms) == tier


@FIXED
@given(st.integers(0, 400 * 86_400_000))
def test_hops_end_in_the_last_one_and_never_overshoot(rest_ms: int) -> None:
    hops = 0
    while (tier := tier_for(rest_ms)) != LAST_HOP:
        assert DELAY_TIERS[tier] <= rest_ms
        rest_ms -= DELAY_TIERS[tier]
        hops += 1

    assert 0 <= rest_ms < 15_000
    assert hops <= 400 + 6 * 4


# --- policies -------------------------------------------------------------------------------------


def test_every_topic_is_in_the_catalogue() -> None:
    assert set(CATALOGUE) == set(Topic)
    assert set(Namespace().fixed_topics()) == {f"engine.{topic}" for topic in Topic} | {
        f"engine.delay.{tier}" for tier in DELAY_TIERS
    } | {f"engine.starts.{lane}" for lane in range(START_LANES)}


@pytest.mark.parametrize("topic", Topic)
def test_what_is_deleted_has_a_time_and_what_is_compacted_keeps_tombstones_long(topic: Topic) -> None:
    spec = CATALOGUE[topic]

    assert spec.policy in ("delete", "compact", "compact,delete")
    if "delete" in spec.policy:
        assert int(spec.config["retention.ms"]) > 0
    if "compact" in spec.policy:
        assert int(spec.config["delete.retention.ms"]) == DELETE_RETENTION_MS


STATES = (Topic.WORKFLOW_STATE, Topic.TASK_STATE, Topic.SNAPSHOTS, Topic.CHECKPOINTS, Topic.IDEMPOTENCY)


@pytest.mark.parametrize("topic", STATES)
def test_state_is_never_deleted_by_time_and_has_the_partitions_of_the_commands(topic: Topic) -> None:
    assert CATALOGUE[topic].policy == "compact"
    assert CATALOGUE[topic].partitions is CATALOGUE[Topic.COMMANDS].partitions is None


@pytest.mark.parametrize("topic", [Topic.TASK_DEFS, Topic.WORKFLOW_DEFS, Topic.NAMESPACE, Topic.WORKERS])
def test_what_everyone_reads_whole_has_one_partition(topic: Topic) -> None:
    assert CATALOGUE[topic].partitions == 1


def test_whose_record_time_counts_is_stamped_by_the_broker() -> None:
    stamped = [CATALOGUE[Topic.COMMANDS], CATALOGUE[Topic.WORKERS], SCHEDULE_SPEC, *map(delay_spec, DELAY_TIERS)]

    assert {spec.config["message.timestamp.type"] for spec in stamped} == {"LogAppendTime"}


@pytest.mark.parametrize("tier", DELAY_TIERS)
def test_a_delay_record_outlives_its_delay_by_the_tolerated_outage(tier: str) -> None:
    retention_ms = int(delay_spec(tier).config["retention.ms"])

    assert retention_ms - DELAY_TIERS[tier] >= TOLERATED_OUTAGE_MS >= 7 * 86_400_000


def test_a_hand_out_is_repeated_well_before_its_record_is_deleted() -> None:
    assert int(SCHEDULE_SPEC.config["retention.ms"]) == SCHEDULE_RETENTION_MS == 2 * HAND_OUT_LIFETIME_MS


def test_commands_outlive_the_tolerated_outage() -> None:
    assert COMMANDS_RETENTION_MS >= TOLERATED_OUTAGE_MS


def test_an_input_and_an_output_fit_into_one_record_of_kafkas_default_size() -> None:
    assert 2 * MAX_PAYLOAD_BYTES + 10_000 <= MAX_RECORD_BYTES <= 1_048_588
