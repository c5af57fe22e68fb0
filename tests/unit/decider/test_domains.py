"""Which domain a task goes to, and what ``taskToDomain`` may be."""

import pytest

from broker_engine.decider.domains import domains_problem
from tests.builders import START_MS, Pollers, Story, asked


def polled(*domains: str, at_ms: int = START_MS) -> Pollers:
    return Pollers({(domain, "encode"): at_ms for domain in domains})


def test_an_entry_for_the_task_type_wins_over_the_star() -> None:
    story = Story("a").given(pollers=polled("all", "own")).start(task_to_domain=b'{"*": "all", "encode": "own"}')

    assert story.task.domain == "own"


def test_a_task_type_without_an_entry_goes_to_the_default_domain() -> None:
    story = Story("a").start(task_to_domain=b'{"other": "eu"}')

    assert (story.task.domain, story.task.domain_choices) == ("default", "")


def test_the_choices_are_recorded_with_no_domain_spelled_out() -> None:
    story = Story("a").start(task_to_domain=b'{"*": " eu ,us, no_domain"}')

    assert (story.task.domain, story.task.domain_choices) == ("default", "eu,us,default")


@pytest.mark.parametrize(("ago_ms", "domain"), [(9_999, "eu"), (10_000, "default")])
def test_a_domain_is_live_for_ten_seconds(ago_ms: int, domain: str) -> None:
    pollers = polled("eu", at_ms=START_MS - ago_ms)
    story = Story("a").given(pollers=pollers).start(task_to_domain=b'{"*": "eu, NO_DOMAIN"}')

    assert story.task.domain == domain


def test_a_retry_chooses_anew() -> None:
    story = Story("a").given(pollers=polled("eu")).start(task_to_domain=b'{"*": "eu, us"}').taken()

    story.given(pollers=polled("us")).failed()

    assert (story.task.attempt, story.task.domain, story.task.domain_choices) == (1, "us", "eu,us")


def test_the_map_is_kept_with_the_workflow() -> None:
    assert Story("a").start(task_to_domain=b'{"*": "eu"}').workflow.task_to_domain == b'{"*": "eu"}'


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (b"[", "not valid JSON"),
        (b'["eu"]', "must be an object"),
        (b'{"encode": 7}', 'taskToDomain["encode"] must be a text'),
        (b'{"*": ""}', "name a domain between the commas"),
        (b'{"*": "eu,,us"}', "name a domain between the commas"),
        (b'{"*": "no_domain, eu"}', "NO_DOMAIN must be the last entry"),
        (b'{"*": "e\\nu"}', "printable characters only"),
        (b'{"*": "' + b"x" * 61 + b'"}', "at most 60 characters"),
        (b'{"*": "' + b",".join([b"x"] * 21) + b'"}', "names 21 domains, at most 20"),
        (b'{"*": "' + b"x" * 10_000 + b'"}', "the limit is 10000"),
    ],
)
def test_a_wrong_map_is_refused(document: bytes, problem: str) -> None:
    story = Story("a").start(task_to_domain=document, **asked())

    assert story.answer.status == 400
    assert problem in story.answer.message


@pytest.mark.parametrize("document", [b"{}", b'{"*": "eu"}', b'{"*": "NO_DOMAIN"}', '{"é": "Zürich 1"}'.encode()])
def test_a_fitting_map_is_taken(document: bytes) -> None:
    assert domains_problem(document) is None
