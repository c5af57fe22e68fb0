"""A tree on real Kafka with every process apart: real JavaScript and jq, and a decider killed in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_engine.log.confluent import ConfluentLog
from broker_engine.topics import Namespace
from broker_engine.worker import Client
from tests.support.roles import KEY, Role, decider_role, delays_role, until, worker_role
from tests.support.trees import fork, loop, operator

pytestmark = pytest.mark.kafka


def work(reference: str, **inputs: str) -> dict[str, object]:
    return {"name": "tree-work", "taskReferenceName": reference, "inputParameters": inputs}


TREE = {
    "name": "tree",
    "tasks": [
        *fork(
            "f",
            [
                loop(
                    "l",
                    [work("round", n="${l.output.iteration}")],
                    "$.l.iteration < $.limit",
                    inputParameters={"limit": 3},
                )
            ],
            [
                operator(
                    "SWITCH",
                    "choose",
                    evaluatorType="javascript",
                    expression="$.amount > 100 ? 'large' : 'small'",
                    inputParameters={"amount": "${workflow.input.amount}"},
                    decisionCases={"large": [work("large")], "small": [work("small")]},
                ),
                operator("WAIT", "w", inputParameters={"duration": "1 secs"}),
            ],
        ),
        operator(
            "JSON_JQ_TRANSFORM",
            "sum",
            inputParameters={"rounds": "${l.output}", "queryExpression": "[.rounds[].round?.n] | add"},
        ),
        operator(
            "INLINE",
            "twice",
            inputParameters={"n": "${sum.output.result}", "evaluatorType": "javascript", "expression": "$.n * 2"},
        ),
        operator("SUB_WORKFLOW", "child", subWorkflowParam={"name": "child"}, inputParameters={"n": 7}),
        operator("HUMAN", "approve"),
    ],
    "outputParameters": {
        "twice": "${twice.output.result}",
        "chosen": "${choose.output.selectedCase}",
        "child": "${child.output.n}",
        "approved": "${approve.output.by}",
    },
}


def test_a_tree_survives_the_death_of_its_decider(
    bootstrap: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREE_FOLDER", str(tmp_path))
    ran, decided = tmp_path / "ran.log", tmp_path / "decider.log"
    decider = decider_role(bootstrap, namespace, tmp_path / "data", partitions=2, log_file=decided)
    system = ["system", "--kafka", bootstrap, "--ns", namespace, "--grace", "1"]
    roles = [
        decider,
        delays_role(bootstrap, namespace, log_file=tmp_path / "delays.log"),
        worker_role(bootstrap, namespace, "tests.support.treeing", log_file=tmp_path / "worker.log"),
        Role(system, log_file=tmp_path / "system.log"),
    ]
    try:
        until(lambda: decided.read_text().count("takeover.done") == 2, what="the takeover")
        with Client(ConfluentLog(bootstrap), Namespace(namespace), key=KEY, timeout=60) as client:
            until(lambda: "tree-work" in client.task_definitions(), what="the registration")
            client.register_workflow(TREE)
            client.register_workflow({"name": "child", "tasks": [work("leaf", n="${workflow.input.n}")]})
            started = client.start("tree", {"amount": 500})
            until(lambda: ran.exists() and "round__2" in ran.read_text(), what="the second round")
            decider.kill()
            decider.start()
            until(lambda: "leaf" in ran.read_text(), 90, what="the child")
            until(lambda: any(t.waiting_for == "update" for t in client.get(started).tasks), what="the human task")
            assert "task complete" in client.explain(started, "approve").sentence
            client.end_task(started, "approve", output={"by": "Ann"})
            view = client.wait(started, 90)
    finally:
        for role in roles:
            role.stop()

    assert (view.status, view.output) == (
        "COMPLETED",
        {"twice": 12, "chosen": "large", "child": 7, "approved": "Ann"},
    )
    assert sorted(ran.read_text().split()) == ["large", "leaf", "round__1", "round__2", "round__3"], "each once"
