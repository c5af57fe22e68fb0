"""`broker-engine dead-letters`: records that could not be decided, and sending them again.

A dead letter holds the bytes as they came, with headers that say from where and why. They stay in their topic until
its retention ends; sending again copies them to the end of ``commands``, where a command that was carried out meanwhile
changes nothing a second time.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, NamedTuple

import typer

from broker_engine.cli import exits, output
from broker_engine.cli.session import Session, command
from broker_engine.errors import BrokerEngineError, DecodeError, LogError, NotFound
from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.namespaces import open_existing
from broker_engine.log.ports import BEGINNING, Delivery, Isolation, Record, TopicPartition
from broker_engine.topics import Topic, partition_of
from broker_engine.wire.codecs import COMMAND
from broker_engine.wire.commands import decode_command
from broker_engine.worker import Client

app = typer.Typer(help="Look at records that could not be decided, and send them again.", no_args_is_help=True)


class DeadLetter(NamedTuple):
    """A record that was put aside."""

    partition: int
    offset: int
    at_ms: int
    key: str
    value: bytes
    #: Where it stood.
    topic: str
    original_partition: int
    original_offset: int
    reason: str

    @property
    def command_type(self) -> str | None:
        """What the bytes say they are, None when they say nothing."""
        try:
            return COMMAND.decode(self.value).type
        except DecodeError:
            return None

    def as_json(self, *, with_value: bool = False) -> dict[str, Any]:
        shown = {
            "partition": self.partition,
            "offset": self.offset,
            "at": self.at_ms,
            "key": self.key,
            "type": self.command_type,
            "reason": self.reason,
            "original": {
                "topic": self.topic,
                "partition": self.original_partition,
                "offset": self.original_offset,
            },
            "bytes": len(self.value),
        }
        return shown | {"value": b64encode(self.value).decode()} if with_value else shown


@command(app, "list", example="broker-engine dead-letters list\nbroker-engine dead-letters list --workflow order-7")
def list_all(
    session: Session,
    workflow: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this workflow.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest.")] = 100,
    values: Annotated[bool, typer.Option("--values", help="With --json: the bytes themselves, in base64.")] = False,
) -> None:
    """List dead letters, the oldest first."""
    log = session.log()
    partitions = open_existing(log, session.namespace, session.signer).partitions
    letters = _letters(session, log, partitions, workflow)[-limit:]
    if session.json:
        output.json_out([letter.as_json(with_value=values) for letter in letters])
        return
    rows = [
        (
            f"{letter.partition}/{letter.offset}",
            output.moment(letter.at_ms),
            letter.key,
            letter.command_type or "undecodable",
            f"{letter.topic}/{letter.original_partition}/{letter.original_offset}",
            letter.reason,
        )
        for letter in letters
    ]
    output.table(("LETTER", "AT", "KEY", "TYPE", "CAME FROM", "REASON"), rows, empty="No dead letters.")


@command(
    app,
    "redrive",
    example="broker-engine dead-letters redrive --workflow order-7\nbroker-engine dead-letters redrive",
)
def redrive(
    session: Session,
    workflow: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this workflow.")] = None,
) -> None:
    """Send dead letters again: release their workflows from quarantine, then append the commands in their order.

    Letters that would only come back (no valid command, or one on a wrong partition) are left where they are.
    """
    log, client = session.log(), session.client()
    letters = _letters(session, log, client.partitions, workflow)
    if workflow is not None and not letters:
        raise NotFound(f"there are no dead letters of workflow {workflow}")
    good: list[DeadLetter] = []
    left: list[tuple[DeadLetter, str]] = []
    for letter in letters:
        why = _why_useless(session, letter, client.partitions)
        if why is not None:
            left.append((letter, why))
        elif not any(letter.key == other.key and letter.value == other.value for other in good):
            good.append(letter)  # one that was sent again before and failed again stands here twice
    keys = dict.fromkeys(letter.key for letter in good) | ({workflow: None} if workflow is not None else {})
    released = [key for key in keys if _release(client, key)]
    _append(session, log, good)
    _say(session, released, good, left)


def _letters(session: Session, log: ConfluentLog, partitions: int, workflow: str | None) -> list[DeadLetter]:
    """The dead letters in the order in which their records stood on each partition of ``commands``."""
    numbers = range(partitions) if workflow is None else [partition_of(workflow, partitions)]
    tps = [TopicPartition(session.namespace.topic(Topic.DEAD_LETTERS), number) for number in numbers]
    admin = log.admin()
    try:
        ends = admin.end_offsets(tps, Isolation.COMMITTED)
    finally:
        admin.close()
    found: list[DeadLetter] = []
    reader = log.reader(headers=True)
    try:
        reader.assign(dict.fromkeys(tps, BEGINNING))
        while any(reader.position(tp) < end for tp, end in ends.items()):
            found += [_letter(record) for record in reader.read(1_000, 0.2)]
    finally:
        reader.close()
    wanted = [letter for letter in found if workflow in (None, letter.key)]
    return sorted(wanted, key=lambda letter: (letter.original_partition, letter.original_offset))


def _letter(record: Record) -> DeadLetter:
    headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    return DeadLetter(
        partition=record.partition,
        offset=record.offset,
        at_ms=record.timestamp_ms,
        key=(record.key or b"").decode(errors="replace"),
        value=record.value or b"",
        topic=headers.get("topic", ""),
        original_partition=int(headers.get("partition", record.partition)),
        original_offset=int(headers.get("offset", -1)),
        reason=headers.get("reason", ""),
    )


def _why_useless(session: Session, letter: DeadLetter, partitions: int) -> str | None:
    """Why sending this letter again would only bring it back; None when it is worth trying."""
    try:
        decoded = decode_command(letter.value, session.signer, at_ms=letter.at_ms, offset=letter.original_offset)
    except DecodeError as error:
        return str(error)
    if decoded.key != letter.key:
        return f"its record key is not the command's, {decoded.key}"
    if partition_of(letter.key, partitions) != letter.original_partition:
        return f"it stood on partition {letter.original_partition}, which is not its key's"
    return None


def _release(client: Client, workflow_id: str) -> bool:
    """End a workflow's quarantine if it is in one."""
    try:
        if client.get(workflow_id).workflow.quarantine is None:
            return False
    except NotFound:
        return False
    client.release(workflow_id)
    return True


def _append(session: Session, log: ConfluentLog, letters: list[DeadLetter]) -> None:
    errors: list[LogError] = []

    def delivered(delivery: Delivery) -> None:
        if delivery.error is not None:
            errors.append(delivery.error)

    writer = log.writer(client_id="redrive")
    topic = session.namespace.topic(Topic.COMMANDS)
    try:
        for letter in letters:
            writer.send(topic, letter.original_partition, letter.key.encode(), letter.value, on_delivery=delivered)
        unsent = writer.flush(30.0)
    finally:
        writer.close()
    if errors:
        raise errors[0]
    if unsent:
        raise BrokerEngineError(f"{unsent} of {len(letters)} letters could not be sent within 30 s; redrive again")


def _say(session: Session, released: list[str], sent: list[DeadLetter], left: list[tuple[DeadLetter, str]]) -> None:
    if session.json:
        output.json_out(
            {
                "released": released,
                "sent": [letter.as_json() for letter in sent],
                "left": [letter.as_json() | {"why": why} for letter, why in left],
            }
        )
    else:
        for key in released:
            output.line(f"released workflow {key} from quarantine")
        for letter in sent:
            output.line(f"sent again {letter.command_type} of {letter.key} to partition {letter.original_partition}")
        for letter, why in left:
            output.line(f"left letter {letter.partition}/{letter.offset} (key {letter.key!r}): {why}")
        output.line(f"{len(released)} released, {len(sent)} sent again, {len(left)} left")
    if left and not sent and not released:
        raise typer.Exit(exits.FAILED)
