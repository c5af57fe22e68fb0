"""Start confirmations reach whoever waits for them, in whichever order they come."""

from __future__ import annotations

from broker_engine.log.memory import MemoryLog
from broker_engine.log.ports import NewTopic
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import REPLY
from broker_engine.wire.kinds import ReplyKind
from broker_engine.wire.records import Reply, StartResume, StartVerdict
from broker_engine.worker.verdicts import Verdicts


def verdicts() -> Verdicts:
    log, namespace = MemoryLog(lambda: 0), Namespace("n")
    log.admin().create([NewTopic(name=namespace.topic(Topic.REPLIES), partitions=1)])
    return Verdicts(log, namespace, 1, "me")


def reply(*given: StartVerdict) -> bytes:
    return REPLY.encode(Reply(kind=ReplyKind.STARTS, verdicts=given))


def test_a_verdict_is_heard_whether_it_comes_before_or_after_the_question() -> None:
    heard: list[StartVerdict] = []
    early, late = StartVerdict("a", 1, 5, True), StartVerdict("b", 1, 6, False, "cancelled")
    desk = verdicts()

    desk._take(reply(early))
    desk.listen("a", 5, heard.append)
    desk.listen("b", 6, heard.append)
    desk._take(reply(late, StartVerdict("b", 1, 7, True)))

    assert heard == [early, late]


def test_who_no_longer_listens_hears_nothing() -> None:
    heard: list[StartVerdict] = []
    desk = verdicts()
    desk.listen("a", 5, heard.append)
    desk.forget("a", 5)

    desk._take(reply(StartVerdict("a", 1, 5, False, "superseded")))

    assert heard == []


def test_garbage_is_passed_over() -> None:
    desk = verdicts()

    desk._take(b"garbage")
    desk._take(None)


def test_what_a_start_that_takes_over_has_to_know_is_there_when_its_verdict_is_heard() -> None:
    desk = verdicts()
    heard: list[bytes | None] = []
    desk.listen("a", 5, lambda verdict: heard.append(desk.resume(verdict.task_id, verdict.lease)))

    desk._take(REPLY.encode(Reply(kind=ReplyKind.STARTS, resumes=(StartResume("a", 5, b"{}"),))))
    desk._take(reply(StartVerdict("a", 1, 5, True)))

    assert heard == [b"{}"]
    assert desk.resume("a", 5) is None
