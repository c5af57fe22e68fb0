"""Conformance rows about task domains, told as values through the decider."""

import orjson

from tests.builders import START_MS, Pollers, Story, a_step

POLLED_5_S_AGO, POLLED_11_S_AGO = START_MS - 5_000, START_MS - 11_000


def test_row_29_each_task_type_gets_its_domain() -> None:
    steps = [a_step(f"ref{number}", name=f"task{number}") for number in (1, 2, 3, 4)]
    domains = {
        "*": "mydomain",
        "task2": "inactive, NO_DOMAIN",
        "task3": "active, NO_DOMAIN",
        "task4": "in1, in2",
    }
    story = Story(*steps).given(pollers=Pollers({("active", "task3"): POLLED_5_S_AGO}))

    story.start(task_to_domain=orjson.dumps(domains))
    for _ in steps[1:]:
        story.taken().completed({})

    found = [story.execution_now.tasks[step.reference].domain for step in steps]
    assert found == ["mydomain", "default", "active", "in2"]


def test_row_30_a_domain_polled_5_s_ago_wins_over_one_polled_11_s_ago() -> None:
    pollers = Pollers({("a", "encode"): POLLED_11_S_AGO, ("b", "encode"): POLLED_5_S_AGO})
    story = Story("a").given(pollers=pollers).start(task_to_domain=b'{"encode": "a,b,c"}')

    assert story.task.domain == "b"


def test_row_30_the_last_domain_is_taken_when_none_is_polled() -> None:
    pollers = Pollers({("a", "encode"): POLLED_11_S_AGO})
    story = Story("a").given(pollers=pollers).start(task_to_domain=b'{"encode": "a,b"}')

    assert story.task.domain == "b"
