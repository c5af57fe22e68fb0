"""``${…}``: what each form resolves to, and how inputs and outputs are put together with it."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_engine.decider.expressions import MAX_NESTING, compile_path, java_text, references, resolve
from broker_engine.model.status import WorkflowStatus
from tests.builders import FIXED, Story, a_step

VALUES = {
    "workflow": {
        "input": {
            "n": 7,
            "none": None,
            "yes": True,
            "map": {"a": 1, "b": ["x", None]},
            "list": [{"p": 1, "n": "one"}, {"p": 2, "n": "two"}, {"n": "none"}],
            "key": "map",
            "odd": "a b[",
            "text": "${workflow.input.n}",
            "with space": 1,
            "with-dash": 2,
            "with.dot": 3,
        },
        "workflowId": "w",
    },
    "a": {"output": {"x": {"y": 5}, "map": 6}},
}


class Values:
    """A document of plain values."""

    def root(self, name: str) -> Any:
        return VALUES.get(name)

    def member(self, name: str, member: str) -> Any:
        root = VALUES.get(name)
        return root.get(member) if isinstance(root, dict) else None

    def roots(self) -> Any:
        return VALUES

    def named(self, name: str) -> str | None:
        return {"CPEWF_TASK_ID": "task-1", "REGION": "north"}.get(name)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        # One expression keeps the value's own type.
        ("${workflow.input.n}", 7),
        ("${workflow.input.yes}", True),
        ("${workflow.input.map}", {"a": 1, "b": ["x", None]}),
        ("${workflow.input.list[1].n}", "two"),
        ("${a.output.x.y}", 5),
        ("${ workflow.input.n }", 7),
        ("${$.workflow.input.n}", 7),
        # Nothing there: null, without an error.
        ("${workflow.input.none}", None),
        ("${workflow.input.missing}", None),
        ("${workflow.input.missing.deeper}", None),
        ("${workflow.input.n.deeper}", None),
        ("${workflow.input.list[9].n}", None),
        ("${workflow.input.list.n}", None),
        ("${b.output.x}", None),
        ("${nowhere}", None),
        # Names that need brackets.
        ("${workflow.input['with space']}", 1),
        ('${workflow.input["with.dot"]}', 3),
        ("${workflow.input.with-dash}", 2),
        # Mixed text is joined as Java would print the values.
        ("n=${workflow.input.n}!", "n=7!"),
        ("${workflow.input.n}${workflow.input.yes}", "7true"),
        ("got ${workflow.input.missing}", "got null"),
        ("got ${workflow.input.map}", "got {a=1, b=[x, null]}"),
        # Escapes.
        ("$${workflow.input.n}", "${workflow.input.n}"),
        ("cost: $${x} and ${workflow.input.n}", "cost: ${x} and 7"),
        ("$5 and $ {x}", "$5 and $ {x}"),
        # Nothing between the braces.
        ("${}", ""),
        ("${  }", ""),
        ("<${}>", "<>"),
        # Never closed: text.
        ("${workflow.input.n", "${workflow.input.n"),
        ("a ${workflow.input.n b", "a ${workflow.input.n b"),
        ("${a{b}", "${a{b}"),
        ("$${workflow", "$${workflow"),
        ("${", "${"),
        # Inside out.
        ("${a.output.${workflow.input.key}}", 6),
        ("${workflow.input.${workflow.input.key}.a}", 1),
        ("${workflow.input['${workflow.input.key}'].a}", 1),
        ("${workflow.input.${workflow.input.${workflow.input.missing}}}", None),
        ("${workflow.input.${workflow.input.odd}}", None),
        # What comes out is not resolved again.
        ("${workflow.input.text}", "${workflow.input.n}"),
        ("<${workflow.input.text}>", "<${workflow.input.n}>"),
        # Many values: a list, also when nothing matches.
        ("${workflow.input.list[*].n}", ["one", "two", "none"]),
        ("${workflow.input.list[?(@.p > 1)].n}", ["two"]),
        ("${workflow.input.list[?(@.p > 5)].n}", []),
        ("${workflow.input.missing[*].n}", []),
        ("${workflow..p}", [1, 2]),
        ("${workflow..missing}", []),
        ("${workflow.input.list[0:2].p}", [1, 2]),
        ("all: ${workflow.input.list[*].p}", "all: [1, 2]"),
        ("${workflow.input.list[-1].n}", "none"),
        ("${$..y}", [5]),
        # Names of the system; secrets stay as written.
        ("${CPEWF_TASK_ID}", "task-1"),
        ("${REGION}/x", "north/x"),
        ("${HOME}", None),
        ("${workflow.secrets.token}", "${workflow.secrets.token}"),
        ("Bearer ${workflow.secrets.token}", "Bearer ${workflow.secrets.token}"),
        # Values that hold no expression.
        ("plain", "plain"),
        ("", ""),
        (None, None),
        (3, 3),
        ({"${workflow.input.n}": "${workflow.input.n}"}, {"${workflow.input.n}": 7}),
        ([1, ["${workflow.input.n}"], {"k": ["${a.output.x}"]}], [1, [7], {"k": [{"y": 5}]}]),
    ],
)
def test_resolves_to(template: Any, value: Any) -> None:
    resolved = resolve(template, Values())

    assert resolved == value
    assert type(resolved) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (1.0, "1.0"),
        (0.25, "0.25"),
        (1e7, "1.0E7"),
        (1.5e-7, "1.5E-7"),
        (-123456789.5, "-1.234567895E8"),
        ("x", "x"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, {"b": None}], "c": "d"}, "{a=[1, {b=null}], c=d}"),
    ],
)
def test_values_inside_text_look_as_java_prints_them(value: Any, text: str) -> None:
    assert java_text(value) == text


@FIXED
@given(st.text(alphabet="${}ab. \\'[]*", max_size=30))
def test_no_text_breaks_the_resolver(text: str) -> None:
    resolve(text, Values())
    references(text)


@FIXED
@given(st.text(max_size=30).filter(lambda text: "${" not in text))
def test_text_without_expressions_stays_as_it_is(text: str) -> None:
    assert resolve(text, Values()) == text


def test_expressions_nested_without_end_stop_being_looked_into() -> None:
    depth = 5_000
    resolve("${" * depth + "workflow.input.n" + "}" * depth, Values())

    assert resolve("${" * MAX_NESTING + "}" * MAX_NESTING, Values()) == ""


@pytest.mark.parametrize("path", ["workflow.input.", "a b[", "a..", "a[", "a[?(", "a.length()"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not a JSONPath"):
        compile_path(path)


def test_references_are_the_tasks_that_a_template_names() -> None:
    template = {"x": "${a.output.x} and ${b['output']['y']}", "y": ["${$.c.input.k}", "${workflow.input.z}"]}

    assert references(template) == {"a", "b", "c", "workflow"}
    assert references("${a.output.${d.output.k}}") == {"a", "d"}
    assert references({"n": 5, "x": "${${workflow.input.k}.output.x}"}) == {"workflow"}
    assert references("$${e.output.x} ${NETFLIX_ENV} ${}") == frozenset()


# --- inputs of tasks ------------------------------------------------------------------------------


def input_of(parameters: Any, start: dict[str, Any] | None = None, **task: Any) -> Any:
    """The input of a workflow's first task."""
    story = Story(a_step("a", input_parameters=parameters, **task))
    return story.start(input=orjson.dumps(start or {})).input


@pytest.mark.parametrize(
    ("parameters", "start", "template", "result"),
    [
        # An explicit value wins over the template's.
        ({"k": 1}, {}, {"k": 2}, {"k": 1}),
        # An absent key takes the template's value, resolved.
        ({}, {"x": 5}, {"k": "${workflow.input.x}"}, {"k": 5}),
        # A key that resolves to null, or is null, takes the template's value as written.
        ({"k": "${workflow.input.nope}"}, {"x": 5}, {"k": "${workflow.input.x}"}, {"k": "${workflow.input.x}"}),
        ({"k": None}, {}, {"k": 2}, {"k": 2}),
        # Nested maps are not merged.
        ({"k": {"a": 1}}, {}, {"k": {"b": 2}}, {"k": {"a": 1}}),
        # Without a template null stays null.
        ({"k": "${workflow.input.nope}"}, {}, {}, {"k": None}),
        # One expression may give the whole input; a template fills it up without changing the source.
        ("${workflow.input}", {"x": 5}, {}, {"x": 5}),
        ("${workflow.input}", {}, {"k": 1, "l": "${workflow.input.k}"}, {"k": 1, "l": None}),
        ("${workflow.input.nope}", {}, {"k": 1}, {"k": 1}),
    ],
)
def test_templates_fill_in(parameters: Any, start: dict[str, Any], template: dict[str, Any], result: Any) -> None:
    assert input_of(parameters, start, input_template=template) == result


def test_a_task_sees_itself_by_its_id() -> None:
    story = Story(a_step("a", input_parameters={"me": "${CPEWF_TASK_ID}"})).start()

    assert story.input == {"me": story.task.task_id}


def test_a_retry_resolves_its_input_anew_over_the_old_one() -> None:
    """Keys of the earlier input that the parameters no longer give survive."""
    story = Story(a_step("a", input_parameters={"me": "${CPEWF_TASK_ID}", "n": "${workflow.input.n}"}))
    story.start(input=b'{"n": 1}').taken()
    story.execution = story.execution_now.with_task(story.task._replace(input=b'{"old": true, "n": 0}'))

    story.failed()

    assert story.input == {"old": True, "n": 1, "me": story.task.task_id}
    assert len({task.task_id for task in story.attempts}) == 2


def test_only_environment_names_given_by_configuration_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """D19: Conductor shows every variable of its server."""
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "s3cret")
    parameters = {"a": "${SECRET_OF_THE_SERVER}", "b": "${NETFLIX_ENV}", "c": "${workflow.env.NETFLIX_ENV}"}
    story = Story(a_step("a", input_parameters=parameters)).given(environment={"NETFLIX_ENV": "test"}).start()

    assert story.input == {"a": None, "b": "test", "c": "test"}


def test_a_path_may_search_the_whole_document() -> None:
    story = Story("a", a_step("b", input_parameters={"found": "${$..needle}"})).start(input=b'{"needle": 1}')

    assert story.taken().completed({"x": {"needle": 2}}).input == {"found": [1, 2]}


def test_a_task_sees_the_workflow_and_the_tasks_before_it() -> None:
    parameters = {
        "input": "${workflow.input.n}",
        "id": "${workflow.workflowId}",
        "type": "${workflow.workflowType}",
        "version": "${workflow.version}",
        "correlation": "${workflow.correlationId}",
        "variable": "${workflow.variables.v}",
        "status": "${workflow.status}",
        "output": "${a.output.x}",
        "task": "${a.taskId}",
        "task_status": "${a.status}",
        "retries": "${a.retryCount}",
        "worker": "${a.workerId}",
        "later": "${c.output.x}",
    }
    story = Story("a", a_step("b", input_parameters=parameters), "c", variables={"v": 9})
    story.start(input=b'{"n": 1}', correlation_id="order-1").fail_once().taken().completed({"x": [1]})

    assert story.input == {
        "input": 1,
        "id": "w",
        "type": "film",
        "version": 1,
        "correlation": "order-1",
        "variable": 9,
        "status": "RUNNING",
        "output": [1],
        "task": story["a"].task_id,
        "task_status": "COMPLETED",
        "retries": 1,
        "worker": "worker-1",
        "later": None,
    }


# --- inputs and outputs of workflows ---------------------------------------------------------------


def test_the_input_template_of_a_workflow_fills_absent_keys_only() -> None:
    step = a_step("a", input_parameters="${workflow.input}")
    story = Story(step, input_template={"x": 1, "y": 2}).start(input=b'{"x": null}')

    assert story.input == {"x": None, "y": 2}


def test_output_parameters_give_the_output() -> None:
    story = Story("a", "b", output_parameters={"x": "${a.output.x}", "nope": "${b.output.nope}"})

    story.start().taken().completed({"x": 1}).taken().completed({"y": 2})

    assert story.output == {"x": 1, "nope": None}


def test_without_output_parameters_the_last_task_gives_the_output() -> None:
    assert Story("a", "b").start().taken().completed({"x": 1}).taken().completed({"y": 2}).output == {"y": 2}
    assert Story("a").start().taken().completed().output == {}


def test_a_failing_task_gives_the_output_of_a_failed_workflow() -> None:
    story = Story("a").start().taken().failed_terminally(output=b'{"partial": 1}')

    assert story.workflow.status is WorkflowStatus.FAILED
    assert story.output == {"partial": 1}
