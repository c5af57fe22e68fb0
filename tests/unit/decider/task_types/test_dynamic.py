"""DYNAMIC and FORK_JOIN_DYNAMIC: what runs is told by the input."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker_engine.decider.definitions import parse_task_def
from broker_engine.model.decision import Schedule
from tests.support.trees import Tree, each, operator, simple, violations

Json = dict[str, Any]


def registered(tree: Tree, name: str, **fields: Any) -> Tree:
    tree.definitions.tasks[name] = parse_task_def({"name": name, "retryCount": 0, **fields}).unwrap()
    return tree


# --- DYNAMIC

DYNAMIC = operator(
    "DYNAMIC", "d", dynamicTaskNameParam="which", inputParameters={"which": "${workflow.input.which}", "n": 3}
)


def test_a_dynamic_task_is_what_its_input_names() -> None:
    tree = registered(Tree(DYNAMIC, simple("last", inputParameters={"n": "${d.output.n}"})), "encode")
    tree.begin(which="encode")

    row = tree.row("d")
    assert (row.task_type, row.domain, tree.input("d")) == ("encode", "default", {"which": "encode", "n": 3})
    tree.done("d", {"n": 7})
    assert tree.input("last") == {"n": 7}


def test_it_is_retried_and_limited_by_that_definition() -> None:
    tree = registered(Tree(DYNAMIC), "encode", retryCount=1, retryDelaySeconds=5, pollTimeoutSeconds=9)
    tree.begin(which="encode")
    assert tree.row("d").next_deadline == "poll"

    tree.fails("d")

    row = tree.row("d")
    assert (row.attempt, row.phase, row.task_type) == (1, "RETRY_WAIT", "encode")
    tree.later(5_000).delay_due(of=row).done("d")  # type: ignore[attr-defined]  # a Tree gives itself
    assert tree.workflow.status == "COMPLETED"


def test_its_definition_is_that_of_the_moment_when_it_began() -> None:
    tree = registered(Tree(DYNAMIC), "encode", retryCount=1, retryDelaySeconds=5).begin(which="encode")
    registered(tree, "encode", retryCount=0)

    assert tree.restored() == tree.execution
    tree.fails("d")
    assert tree.row("d").attempt == 1


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        (None, "which must name a task definition, not None: give it by the input parameter which"),
        (5, "which must name a task definition, not 5"),
        ("nothing", "which names 'nothing', which is no registered task definition: register it first"),
    ],
)
def test_what_names_no_definition_is_a_terminal_error(which: Any, reason: str) -> None:
    tree = Tree(DYNAMIC).begin(which=which)

    assert (tree.statuses["d"], tree.workflow.status) == ("FAILED_WITH_TERMINAL_ERROR", "FAILED")
    assert reason in (tree.workflow.reason or "")


def test_in_a_loop_each_round_has_its_own() -> None:
    step = operator("DYNAMIC", "d", dynamicTaskNameParam="which", inputParameters={"which": "${l.output.loopItem}"})
    tree = registered(registered(Tree(each("l", ["x", "y"], [step])), "x"), "y").begin()
    assert tree.row("d__1").task_type == "x"

    tree.done("d__1")

    assert (tree.row("d__2").task_type, len(tree.execution_now.definition.dynamic.nodes)) == ("y", 1)
    assert tree.restored() == tree.execution
    assert tree.done("d__2").workflow.status == "COMPLETED"


def test_the_parameter_must_be_there() -> None:
    assert violations(operator("DYNAMIC", "d")) == {"tasks[0].dynamicTaskNameParam": "is required by DYNAMIC"}
    found = violations(operator("DYNAMIC", "d", dynamicTaskNameParam="which"))
    assert found["tasks[0].dynamicTaskNameParam"].startswith("must name an input parameter of the task")


# --- FORK_JOIN_DYNAMIC: a list of tasks


def forked(reference: str = "f", **fields: Any) -> list[Json]:
    return [
        operator(
            "FORK_JOIN_DYNAMIC",
            reference,
            dynamicForkTasksParam="tasks",
            dynamicForkTasksInputParamName="inputs",
            inputParameters={"tasks": "${workflow.input.tasks}", "inputs": "${workflow.input.inputs}", "own": 1},
            **fields,
        ),
        operator("JOIN", f"{reference}_join"),
    ]


def task(reference: str, **fields: Any) -> Json:
    return {"name": "work", "taskReferenceName": reference, "type": "SIMPLE", **fields}


def test_the_tasks_of_the_input_run_side_by_side_and_the_join_waits_for_all() -> None:
    tree = registered(Tree(*forked()), "work")
    tree.begin(tasks=[task("x"), task("y", inputParameters={"k": "${workflow.input.k}"})], inputs={"x": {"n": 1}}, k=4)

    assert (tree.waiting, tree.output("f")) == (["x", "y"], {"forkedTasks": ["x", "y"]})
    assert (tree.input("x"), tree.input("y")) == ({"n": 1}, {"k": 4})
    assert (tree.row("f_join").progress_done, tree.row("f_join").progress_total) == (0, 2)
    tree.done("y", {"n": 2})
    assert tree.workflow.status == "RUNNING"
    tree.done("x", {"n": 1})
    assert tree.output("f_join") == {"x": {"n": 1}, "y": {"n": 2}}
    assert tree.workflow.status == "COMPLETED"


def test_inputs_are_not_resolved_again() -> None:
    tree = registered(Tree(*forked()), "work").begin(tasks=[task("x")], inputs={"x": {"n": "${workflow.input.k}"}})

    assert tree.input("x") == {"n": "${workflow.input.k}"}


def test_the_tasks_are_stored_once_with_their_definitions() -> None:
    tree = registered(Tree(*forked()), "work", retryCount=1, retryDelaySeconds=5).begin(tasks=[task("x")], inputs={})
    registered(tree, "work", retryCount=0)

    assert tree.input("f") == {"own": 1}
    stored = orjson.loads(tree.row("f").definition or b"")
    assert stored[0]["task"]["taskDefinition"]["retryCount"] == 1
    assert tree.row("x").definition is None
    assert tree.fails("x").row("x").attempt == 1


def test_an_empty_list_goes_on() -> None:
    tree = Tree(*forked(), simple("last")).begin(tasks=[], inputs={})

    assert (tree.waiting, tree.output("f_join")) == (["last"], {})


def test_an_execution_is_rebuilt_with_its_forked_tasks() -> None:
    inner = operator("SWITCH", "s", evaluatorType="value-param", expression="v", decisionCases={"a": [task("in")]})
    tree = registered(Tree(*forked()), "work").begin(tasks=[task("x"), inner], inputs={"s": {"v": "a"}})
    assert tree.waiting == ["x", "in"]

    assert tree.restored() == tree.execution
    tree.execution = tree.restored()
    tree.done("in").done("x")
    assert tree.workflow.status == "COMPLETED"


def test_a_failed_forked_task_fails_the_join_and_cancels_the_others() -> None:
    tree = registered(Tree(*forked()), "work").begin(tasks=[task("x"), task("y")], inputs={}).fails("x", "no stock")

    assert tree.statuses == {"f": "COMPLETED", "x": "FAILED", "y": "CANCELED", "f_join": "FAILED"}
    assert tree.workflow.reason == "no stock"


def test_loops_and_sub_workflows_may_be_forked() -> None:
    loop = {**each("l", [1, 2], [task("b")]), "name": "l"}
    child = operator("SUB_WORKFLOW", "c", subWorkflowParam={"name": "child"})
    tree = registered(Tree(*forked()), "work").begin(tasks=[loop, child], inputs={})
    tree.done("b__1").done("b__2")

    assert (tree.statuses["l"], tree.row("c").waiting_for, tree.row("f_join").progress_done) == (
        "COMPLETED",
        "workflow",
        1,
    )
    assert tree.restored() == tree.execution


def test_forks_and_dependencies_inside_a_forked_loop_are_counted() -> None:
    branches = [[task("p")], [task("q")]]
    body = [
        operator("FORK_JOIN", "g", forkTasks=branches),
        operator("JOIN", "gj", joinOn=["p", "q"]),
        operator("SWITCH", "s", evaluatorType="value-param", expression="v", inputParameters={"v": "a"})
        | {"decisionCases": {"a": [{**task("z"), "dependsOn": ["y"]}, task("y")]}},
    ]
    tree = registered(Tree(*forked()), "work").begin(tasks=[each("l", [1, 2], body)], inputs={})

    for number in (1, 2):
        tree.done(f"p__{number}").done(f"q__{number}").done(f"y__{number}")
        assert tree.restored() == tree.execution
        tree.done(f"z__{number}")

    assert (tree.statuses["l"], tree.workflow.status) == ("COMPLETED", "COMPLETED")


def test_in_a_loop_each_round_forks_anew_and_forgets_the_last_one() -> None:
    fork, join = forked()
    fork["inputParameters"] = {"tasks": "${l.output.loopItem}", "inputs": {}}
    items = [[task("x")], [task("x"), task("y")], []]
    tree = registered(Tree(each("l", items, [fork, join]), simple("last")), "work").begin()
    tree.done("x__1", {"n": 1})

    assert tree.waiting == ["x__2", "y__2"]
    assert {suffix for _, suffix in tree.execution_now.definition.dynamic.nodes} == {"__2"}
    assert tree.restored() == tree.execution
    tree.done("y__2", {"n": 2}).done("x__2", {"n": 3})
    assert tree.waiting == ["last"]
    assert tree.output("l")["2"]["f_join"] == {"x": {"n": 3}, "y": {"n": 2}}


@pytest.mark.parametrize(
    ("tasks", "inputs", "reason"),
    [
        (None, {}, "tasks must be a list of tasks, not null: see dynamicForkTasksParam"),
        ({"a": 1}, {}, "tasks must be a list of tasks, not dict"),
        ([5], {}, "tasks[0] must be a task, not int '5'"),
        ([task("x")], None, "inputs must be an object of inputs by reference, not null"),
        ([task("x")], {"x": 5}, "inputs.x must be an object, not int '5'"),
        ([task("x"), task("x")], {}, "tasks[1].taskReferenceName: is used twice"),
        ([task("f")], {}, "tasks[0].taskReferenceName 'f' is used already in this workflow: choose another"),
        ([{"name": "work"}], {}, "tasks[0].taskReferenceName: is required"),
        ([task("x", type="FORK_JOIN", forkTasks=[[task("y")]])], {}, "cannot be forked by itself: use a SUB_WORKFLOW"),
        ([task("x", dependsOn=["y"]), task("y")], {}, "tasks[0].dependsOn: forked tasks begin together"),
        ([task("x", type="MAGIC")], {}, "tasks[0].type: is not a task type of this release"),
    ],
)
def test_what_cannot_be_forked_is_a_terminal_error_that_names_the_field(tasks: Any, inputs: Any, reason: str) -> None:
    tree = registered(Tree(*forked()), "work").begin(tasks=tasks, inputs=inputs)

    assert (tree.statuses["f"], tree.workflow.status) == ("FAILED_WITH_TERMINAL_ERROR", "FAILED")
    assert reason in (tree.workflow.reason or "")


def test_too_many_bytes_of_tasks_say_what_to_do() -> None:
    tree = registered(Tree(*forked()), "work", description="x" * 300)
    tree.given(max_payload_bytes=600)
    tree.begin(tasks=[task("x")], inputs={"x": {"t": "y" * 250}})

    assert "give them references instead of data" in (tree.workflow.reason or "")


# --- FORK_JOIN_DYNAMIC: one for each input


def for_each(**inputs: Any) -> list[Json]:
    return [operator("FORK_JOIN_DYNAMIC", "f", inputParameters=inputs), operator("JOIN", "f_join")]


def test_one_task_runs_for_each_input() -> None:
    tree = registered(Tree(*for_each(forkTaskName="work", forkTaskInputs="${workflow.input.list}")), "work")
    tree.begin(list=[{"n": 1}, "two"])

    assert tree.waiting == ["_work_0", "_work_1"]
    assert (tree.input("_work_0"), tree.input("_work_1")) == ({"n": 1, "__index": 0}, {"input": "two", "__index": 1})
    assert [schedule.task.task_type for schedule in tree.now(Schedule)] == ["work", "work"]
    tree.done("_work_0").done("_work_1", {"r": 2})
    assert tree.output("f_join") == {"_work_0": {}, "_work_1": {"r": 2}}


def test_one_workflow_runs_for_each_input() -> None:
    tree = Tree(*for_each(forkTaskWorkflow="child", forkTaskWorkflowVersion="2", forkTaskInputs=[{"n": 1}])).begin()

    (row,) = [row for row in tree.rows.values() if row.sub_workflow_id]
    (start,) = tree.starts
    assert (row.reference, start.name, start.version) == ("_f_0", "child", 2)
    assert orjson.loads(start.input) == {"n": 1, "__index": 0}


def test_a_type_of_the_engine_s_own_may_run_for_each_input() -> None:
    tree = Tree(*for_each(forkTaskType="HTTP", forkTaskInputs=[{"uri": "http://x"}])).begin()

    assert (tree.waiting, tree.row("_HTTP_0").task_type, tree.row("_HTTP_0").domain) == (["_HTTP_0"], "HTTP", "system")


def test_an_optional_fork_has_optional_tasks() -> None:
    fork, join = for_each(forkTaskName="work", forkTaskInputs=[{}])
    tree = registered(Tree({**fork, "optional": True}, join), "work").begin().fails("_work_0")

    assert (tree.statuses["_work_0"], tree.workflow.status) == ("COMPLETED_WITH_ERRORS", "COMPLETED")


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (
            {"forkTaskInputs": "${workflow.input.none}"},
            "forkTaskInputs must be a list, an input for each task, not null",
        ),
        ({"forkTaskInputs": [1], "forkTaskName": 5}, "forkTaskName must be a text, not int '5'"),
        (
            {"forkTaskInputs": [1], "forkTaskWorkflow": "c", "forkTaskWorkflowVersion": "x"},
            "forkTaskWorkflowVersion must be a whole number",
        ),
    ],
)
def test_what_is_wrong_with_that_form_is_named(inputs: Json, reason: str) -> None:
    tree = Tree(*for_each(**inputs)).begin()

    assert tree.statuses["f"] == "FAILED_WITH_TERMINAL_ERROR"
    assert reason in (tree.workflow.reason or "")


def test_a_dynamic_fork_needs_one_of_the_forms_and_a_join() -> None:
    found = violations(operator("FORK_JOIN_DYNAMIC", "f"))

    assert found["tasks[0].dynamicForkTasksParam"] == "is required by FORK_JOIN_DYNAMIC"
    assert found["tasks[0]"] == "a FORK_JOIN_DYNAMIC must be followed by a JOIN"
