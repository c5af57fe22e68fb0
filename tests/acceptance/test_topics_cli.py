"""`topics`, `config`, and the decider's refusal of topics that are not safe."""

from __future__ import annotations

import pytest

from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.ports import NewTopic
from broker_engine.topics import CATALOGUE, Namespace, Topic
from tests.acceptance.conftest import Cli

pytestmark = pytest.mark.kafka


def make(cli: Cli, topic: Topic, partitions: int, **changes: str) -> str:
    """A topic of the namespace that somebody else has made, in his own way."""
    name = Namespace(cli.namespace).topic(topic)
    config = {**CATALOGUE[topic].config, **{key.replace("_", "."): value for key, value in changes.items()}}
    admin = ConfluentLog(cli.bootstrap).admin()
    admin.create([NewTopic(name=name, partitions=partitions, config=config)])
    admin.close()
    return name


def test_topics_are_created_listed_and_verified(cli: Cli) -> None:
    assert cli("topics", "verify").code == 3
    missing = cli("topics", "list", "--json").json
    assert not any(topic["exists"] for topic in missing)

    applied = cli("topics", "apply", "--partitions", 3, "--json")
    assert (applied.code, applied.json) == (0, {"namespace": cli.namespace, "partitions": 3})
    verified = cli("topics", "verify", "--json")
    assert (verified.code, verified.json["problems"]) == (0, [])

    listed = {topic["name"]: topic for topic in cli("topics", "list", "--json").json}
    assert listed[f"{cli.namespace}.commands"] == {
        "name": f"{cli.namespace}.commands",
        "exists": True,
        "partitions": 3,
        "policy": "delete",
        "key": "workflow id",
        "value": "Command",
    }


def test_verify_lists_every_problem(cli: Cli) -> None:
    cli("topics", "apply", "--partitions", 2)
    names = [Namespace(cli.namespace).topic(topic) for topic in (Topic.EVENTS, Topic.REPLIES)]
    admin = ConfluentLog(cli.bootstrap).admin()
    admin.delete(names)
    admin.close()

    ran = cli("topics", "verify")

    assert ran.code == 1
    assert all(f"topic {name} is missing: run `broker-engine topics apply`" in ran.out for name in names)
    assert cli("topics", "apply").code == 0
    assert cli("topics", "verify").code == 0


def test_a_decider_refuses_a_topic_with_the_wrong_partition_count_and_says_what_to_do(cli: Cli) -> None:
    name = make(cli, Topic.COMMANDS, 5)

    decider = cli.role("decider", "--partitions", 4)

    assert decider.process.wait(60) == 1
    reason = decider.events("role.failed")[0]["reason"]
    assert f"topic {name} has 5 partitions, the namespace was made with 4: restore it" in reason


def test_a_decider_refuses_a_topic_with_the_wrong_policy_and_says_what_to_do(cli: Cli) -> None:
    name = make(cli, Topic.TASK_STATE, 4, cleanup_policy="delete")

    decider = cli.role("decider", "--partitions", 4)

    assert decider.process.wait(60) == 1
    reason = decider.events("role.failed")[0]["reason"]
    assert f"topic {name} has cleanup.policy=delete, it must be compact: alter the topic" in reason


def test_a_namespace_with_a_key_refuses_others(cli: Cli) -> None:
    assert cli("topics", "apply", "--key", "right").code == 0

    refused = cli("task", "list", "--key", "wrong", "--json")

    assert (refused.code, refused.error["error"]) == (1, "UnsafeSettings")
    assert "BROKER_ENGINE_NAMESPACE_KEY" in refused.error["message"]
    assert cli("task", "list", "--key", "right").code == 0


def test_config_shows_what_is_in_force_and_no_secret(cli: Cli) -> None:
    ran = cli("config", "show", "--key", "top-secret", "--json")

    assert ran.json["namespace"] == cli.namespace
    assert ran.json["kafka"]["bootstrap_servers"] == cli.bootstrap
    assert "top-secret" not in ran.out
    assert "top-secret" not in cli("config", "show", "--key", "top-secret").out
