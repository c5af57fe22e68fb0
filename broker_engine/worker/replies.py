"""Commands that want an answer: send, and wait for the decider's reply."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import NamedTuple

import structlog

from broker_engine.errors import (
    BadRequest,
    BrokerEngineError,
    Conflict,
    DecodeError,
    LogError,
    NoAnswer,
    NotFound,
    PayloadTooLarge,
    TooManyRequests,
)
from broker_engine.log.ports import END, FOLLOW_MS, Delivery, Log, TopicPartition
from broker_engine.model.commands import AnyCommand, StartWorkflow
from broker_engine.topics import Namespace, Topic, lane_of
from broker_engine.wire.codecs import REPLY
from broker_engine.wire.commands import encode_command
from broker_engine.wire.kinds import ReplyKind
from broker_engine.wire.signing import Signer

_log = structlog.get_logger(__name__)

#: Commands that are sent one after the other share a request; who waits for an answer does not wait for this.
LINGER_MS = 5
_ERRORS: dict[int, type[BadRequest]] = {404: NotFound, 409: Conflict, 413: PayloadTooLarge, 429: TooManyRequests}


class Answered(NamedTuple):
    """A reply: HTTP-like status and text (JSON where there is more than a sentence)."""

    status: int
    message: str


def raise_for(answer: Answered, message: str | None = None) -> None:
    """Raise the error that a status stands for; nothing below 400."""
    if answer.status >= 500:
        raise BrokerEngineError(message or answer.message)
    if answer.status >= 400:
        raise _ERRORS.get(answer.status, BadRequest)(message or answer.message)


class Courier:
    """Sends commands and matches replies to them. One per client; safe for use by several threads."""

    def __init__(self, log: Log, namespace: Namespace, partitions: int, signer: Signer, client_id: str) -> None:
        self.client_id = client_id
        self._partitions = partitions
        self._partition_of = log.partition_of
        self._signer = signer
        self._namespace = namespace
        self._commands = namespace.topic(Topic.COMMANDS)
        self._writer = log.writer(client_id=client_id, linger_ms=LINGER_MS)
        self._reader = log.reader(fetch_wait_ms=FOLLOW_MS)
        self._reader.assign(
            {TopicPartition(namespace.topic(Topic.REPLIES), self._partition_of(client_id, partitions)): END}
        )
        self._waiting: dict[str, Future[Answered]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replies", daemon=True)
        self._thread.start()

    def send(self, command: AnyCommand) -> Future[Answered]:
        """Send a command with its ``command_id`` set; the future gets the reply.

        Without ``reply_to`` the future is done with the delivery. A command that could not be delivered fails it.
        """
        future: Future[Answered] = Future()
        command_id = command.command_id
        assert command_id is not None
        if command.reply_to is not None:
            self._waiting[command_id] = future

        def delivered(delivery: Delivery) -> None:
            if command.reply_to is not None and (delivery.error is None or self._waiting.pop(command_id, None) is None):
                return
            if delivery.error is not None:
                future.set_exception(delivery.error)
            else:
                future.set_result(Answered(202, command.key))

        topic = self._commands
        if isinstance(command, StartWorkflow):
            topic = self._namespace.starts(lane_of(command.tenant))
        partition = self._partition_of(command.key, self._partitions)
        value = encode_command(command, self._signer)
        try:
            self._writer.send(topic, partition, command.key.encode(), value, on_delivery=delivered)
        except LogError:
            self._waiting.pop(command_id, None)
            raise
        return future

    def ask(self, command: AnyCommand, timeout: float) -> Answered:
        """Send and wait.

        Raises:
            NoAnswer: no reply in time; the command may still be carried out.
        """
        future = self.send(command)
        self._writer.flush(LINGER_MS / 1_000)  # nobody else's command is worth waiting for
        try:
            return future.result(timeout)
        except FutureTimeout as error:
            self._waiting.pop(command.command_id or "", None)
            raise NoAnswer from error

    def flush(self, timeout: float) -> int:
        return self._writer.flush(timeout)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5.0)
        self._writer.close()
        self._reader.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._writer.poll(0.0)
                for record in self._reader.read(500, 0.02):
                    if record.key == self.client_id.encode():
                        self._take(record.value)
            except LogError as error:
                _log.warning("client.replies_failed", error=str(error))
                time.sleep(0.5)

    def _take(self, value: bytes | None) -> None:
        try:
            reply = REPLY.decode(value)
        except DecodeError as error:
            _log.warning("client.reply_undecodable", error=str(error))
            return
        if reply.kind is ReplyKind.ANSWER:
            future = self._waiting.pop(reply.command_id or "", None)
            if future is not None and not future.done():
                future.set_result(Answered(reply.status, reply.message))
