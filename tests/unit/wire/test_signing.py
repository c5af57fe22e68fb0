"""Who may say what."""

from __future__ import annotations

import pytest

from broker_engine.errors import BadSignature, DecodeError
from broker_engine.model.commands import DelayDue, StartWorkflow, TaskReported, TaskStarted, TerminateWorkflow
from broker_engine.model.status import ReportStatus
from broker_engine.wire.codecs import COMMAND
from broker_engine.wire.commands import DECODERS, command_types_first_bytes, decode_command, encode_command
from broker_engine.wire.kinds import CommandType
from broker_engine.wire.records import CommandRecord
from broker_engine.wire.signing import Signer

KEY, OTHER, OPEN = Signer("key"), Signer("another"), Signer(None)
START = StartWorkflow(
    key="w", name="n", input=b'{"a":1}', command_id="c", expires_at_ms=9, reply_to="me", operator="user:x"
)
STARTED = TaskStarted(key="w", reference="r", task_id="t", hand_out=2, worker_id="k", wants_confirmation=True)
REPORTED = TaskReported(
    key="w",
    reference="r",
    task_id="t",
    hand_out=2,
    status=ReportStatus.FAILED,
    lease=4,
    sequence=1,
    worker_id="k",
    output=b"{}",
    reason="because",
    error_code="E",
)


def decode(value: bytes, signer: Signer) -> object:
    return decode_command(value, signer, at_ms=0, offset=0)


def test_a_signed_command_comes_back_under_its_key_only() -> None:
    value = encode_command(START, KEY)

    assert decode(value, KEY) == START
    assert decode(value, OPEN) == START
    with pytest.raises(BadSignature):
        decode(value, OTHER)


def test_an_unsigned_command_is_refused_where_there_is_a_key() -> None:
    with pytest.raises(BadSignature):
        decode(encode_command(START, OPEN), KEY)


def test_no_byte_of_a_signed_command_may_change() -> None:
    value = bytearray(encode_command(TerminateWorkflow(key="w", reason="r"), KEY))
    for place in range(len(value)):
        changed = bytes(value[:place]) + bytes([value[place] ^ 1]) + bytes(value[place + 1 :])
        with pytest.raises(DecodeError):
            decode(changed, KEY)


def test_a_report_needs_the_token_of_its_very_hand_out() -> None:
    token = KEY.token("t", 2)

    assert decode(encode_command(STARTED, OPEN, token=token), KEY) == STARTED
    assert decode(encode_command(REPORTED, OPEN, token=token), KEY) == REPORTED
    for wrong in (KEY.token("t", 3), KEY.token("u", 2), OTHER.token("t", 2), b""):
        with pytest.raises(BadSignature):
            decode(encode_command(STARTED, OPEN, token=wrong), KEY)


def test_a_token_does_not_let_a_worker_steer_a_workflow() -> None:
    record = CommandRecord(
        type=CommandType.TERMINATE_WORKFLOW, key="w", task_id="t", hand_out=2, token=KEY.token("t", 2)
    )

    with pytest.raises(BadSignature):
        decode(COMMAND.encode(record), KEY)


def test_a_worker_cannot_report_without_its_lease() -> None:
    """A report without lease is an operator's, and those are signed."""
    record = CommandRecord(
        type=CommandType.TASK_REPORTED,
        key="w",
        reference="r",
        task_id="t",
        hand_out=2,
        status=ReportStatus.COMPLETED,
        token=KEY.token("t", 2),
    )

    with pytest.raises(DecodeError, match="lease"):
        decode(COMMAND.encode(record), KEY)


def test_a_key_s_fingerprint_tells_keys_apart_and_not_the_key() -> None:
    assert KEY.key_hash() == Signer("key").key_hash() != OTHER.key_hash()
    assert OPEN.key_hash() is None
    assert b"key" not in (KEY.key_hash() or b"")


NEEDS_MORE = sorted(
    DECODERS.keys()
    - {
        CommandType.TICK,
        CommandType.TERMINATE_WORKFLOW,
        CommandType.RELEASE_WORKFLOW,
        CommandType.RESET_CALLBACKS,
        CommandType.PAUSE_WORKFLOW,
        CommandType.RESUME_WORKFLOW,
        CommandType.DELETE_TASK_DEF,
        CommandType.STOP_STARTS,
        CommandType.ALLOW_STARTS,
        CommandType.CLEAR_CAP,
        CommandType.DELETE_SCHEDULE,
        CommandType.RETRY_WORKFLOW,
        CommandType.REMOVE_WORKFLOW,
        CommandType.RERUN_WORKFLOW,
        CommandType.RESTART_WORKFLOW,
        CommandType.PAUSE_SCHEDULE,
        CommandType.RESUME_SCHEDULE,
    }
)


@pytest.mark.parametrize("kind", NEEDS_MORE)
def test_a_command_that_lacks_what_it_needs_says_which(kind: CommandType) -> None:
    with pytest.raises(DecodeError, match="lacks"):
        decode(COMMAND.encode(CommandRecord(type=kind, key="w")), OPEN)


def test_a_command_made_by_the_shell_may_not_stand_on_the_log() -> None:
    with pytest.raises(DecodeError, match="may stand on the log"):
        decode(COMMAND.encode(CommandRecord(type=CommandType.DEADLINE_REACHED, key="w")), OPEN)


def test_commands_are_sorted_by_their_first_bytes() -> None:
    starts = command_types_first_bytes(CommandType.TASK_STARTED)

    assert encode_command(STARTED, KEY, token=b"t")[:6] in starts
    assert encode_command(START, KEY)[:6] not in starts
    assert encode_command(DelayDue(key="w", reference="r", task_id="t", hand_out=0, due_at_ms=1), KEY)[:6] not in starts
