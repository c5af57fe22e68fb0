"""What all commands share: the options that say which engine is meant, and the edge where errors end.

``@command`` adds the options to a command's own, so that they may stand behind it (`task list --ns shop`) as well as
before the noun (`--ns shop task list`). In rank: the command's flag, the flag before the noun, the environment.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import orjson
import structlog
import typer
from pydantic import SecretStr, ValidationError

from broker_engine.cli import exits
from broker_engine.cli.logs import LogLevel, configure
from broker_engine.config import Settings
from broker_engine.errors import BadRequest, BrokerEngineError, Unreachable
from broker_engine.log.confluent import ConfluentLog
from broker_engine.runtime.local_broker.readiness import accepts_connections
from broker_engine.topics import Namespace
from broker_engine.wire.signing import Signer
from broker_engine.worker import Client

_log = structlog.get_logger(__name__)

_PANEL = "Connection"

KafkaOption = Annotated[
    str | None,
    typer.Option(
        "--kafka",
        metavar="HOST:PORT",
        help="The Kafka cluster (env: BROKER_ENGINE_KAFKA__BOOTSTRAP_SERVERS; default: 127.0.0.1:9092)",
        rich_help_panel=_PANEL,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--ns",
        metavar="NAME",
        help="The engine's namespace (env: BROKER_ENGINE_NAMESPACE; default: engine)",
        rich_help_panel=_PANEL,
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="The namespace key, if it has one (env: BROKER_ENGINE_NAMESPACE_KEY, which others cannot read)",
        rich_help_panel=_PANEL,
    ),
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option("--log-level", help="The least that is logged, on standard error.", rich_help_panel=_PANEL),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and errors as a JSON object.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The shared options as they were given."""

    kafka: str | None = None
    ns: str | None = None
    key: str | None = None
    log_level: LogLevel | None = None

    def over(self, outer: Flags) -> Flags:
        """These, and where one is missing the outer one."""
        return Flags(
            kafka=self.kafka or outer.kafka,
            ns=self.ns or outer.ns,
            key=self.key or outer.key,
            log_level=self.log_level or outer.log_level,
        )


@dataclass(slots=True, kw_only=True)
class Session:
    """One run of one command."""

    settings: Settings
    flags: Flags
    json: bool = False
    _clients: list[Client] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return self.settings.kafka.bootstrap_servers

    @property
    def given_bootstrap(self) -> str | None:
        """The cluster that was named, None if the address is only the default."""
        kafka = self.settings.kafka
        return kafka.bootstrap_servers if "bootstrap_servers" in kafka.model_fields_set else None

    @property
    def namespace(self) -> Namespace:
        return Namespace(self.settings.namespace)

    @property
    def signer(self) -> Signer:
        return Signer(self.settings.key)

    def cluster(self) -> ConfluentLog:
        """The cluster, whether it answers or not (for roles, which wait for it)."""
        return ConfluentLog(self.bootstrap, conf=self.settings.kafka.conf)

    def log(self) -> ConfluentLog:
        """The cluster, which must be there: a command should not hang for an address that nobody listens at.

        Raises:
            Unreachable: no connection is accepted.
        """
        if not accepts_connections(self.bootstrap, timeout=5.0):
            raise Unreachable(
                f"no broker answers at {self.bootstrap}: start one (`broker-engine kafka start`) or correct "
                f"`--kafka HOST:PORT`"
            )
        return self.cluster()

    def client(self) -> Client:
        """A client of the namespace, closed when the command ends."""
        client = Client(self.log(), self.namespace, key=self.settings.key)
        self._clients.append(client)
        return client

    def with_settings(self, **changes: Any) -> None:
        """Put a command's own flags (those that were given) over the settings."""
        given = {name: value for name, value in changes.items() if value is not None}
        self.settings = self.settings.model_copy(update=given)

    def close(self) -> None:
        for client in self._clients:
            client.close()


def open_session(flags: Flags, *, json: bool) -> Session:
    """Read the environment, put the flags over it, and check what can be checked without a cluster."""
    try:
        settings = Settings()
    except ValidationError as error:
        problems = "; ".join(
            f"BROKER_ENGINE_{'__'.join(map(str, problem['loc'])).upper()}: {problem['msg']}"
            for problem in error.errors()
        )
        raise typer.BadParameter(f"the environment holds a bad setting: {problems}") from error
    if flags.kafka:
        kafka = settings.kafka.model_copy(update={"bootstrap_servers": flags.kafka})
        settings = settings.model_copy(update={"kafka": kafka})
    if flags.ns:
        settings = settings.model_copy(update={"namespace": flags.ns})
    if flags.key:
        settings = settings.model_copy(update={"namespace_key": SecretStr(flags.key)})
    try:
        Namespace(settings.namespace)
    except BadRequest as error:
        raise typer.BadParameter(str(error), param_hint="--ns") from error
    _check_address(settings.kafka.bootstrap_servers)
    return Session(settings=settings, flags=flags, json=json)


def _check_address(bootstrap: str) -> None:
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit():
            raise typer.BadParameter(f"{address.strip()!r} is not HOST:PORT", param_hint="--kafka")


def command(
    app: typer.Typer,
    name: str,
    *,
    example: str,
    json: bool = True,
    role: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function whose first parameter is the Session as a command, with the shared options.

    Args:
        app: the noun's table of commands.
        name: the verb.
        example: command lines for the end of the help, one a line.
        json: whether the command prints data (then it has ``--json``).
        role: whether it runs until stopped (then it logs from INFO up).
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            context = given.pop("context")
            own = Flags(**{name: given.pop(name) for name in ("kafka", "ns", "key", "log_level")})
            flags = own.over(context.obj if isinstance(context.obj, Flags) else Flags())
            as_json = given.pop("json", False)
            configure(flags.log_level or (LogLevel.INFO if role else LogLevel.WARNING))
            session = open_session(flags, json=as_json)
            try:
                function(session, **given)
            except BrokerEngineError as error:
                if role:  # its readers are those of its log
                    _log.error("role.failed", error=type(error).__name__, reason=str(error))
                    raise typer.Exit(exits.exit_code(error)) from error
                raise typer.Exit(exits.tell(error, json=as_json)) from error
            finally:
                session.close()

        signature = _with_shared_options(function, json=json)
        run.__signature__ = signature  # type: ignore[attr-defined]  # what inspect.signature looks for
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        app.command(name, epilog=_epilog(example))(run)
        return function

    return register


def _with_shared_options(function: Callable[..., None], *, json: bool) -> inspect.Signature:
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]  # without the session
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", kind, annotation=typer.Context)]
    parameters += [p.replace(kind=kind, annotation=hints[p.name]) for p in own]
    if json:
        parameters.append(inspect.Parameter("json", kind, annotation=JsonOption, default=False))
    shared = {"kafka": KafkaOption, "ns": NamespaceOption, "key": KeyOption, "log_level": LogLevelOption}
    for name, annotation in shared.items():
        parameters.append(inspect.Parameter(name, kind, annotation=annotation, default=None))
    return inspect.Signature(parameters)


def _epilog(example: str) -> str:
    lines = "\n".join(line.strip() for line in example.strip().splitlines())
    return f"Examples:\n\n```text\n{lines}\n```"


def root(
    context: typer.Context,
    kafka: KafkaOption = None,
    ns: NamespaceOption = None,
    key: KeyOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """A durable task and workflow engine that needs nothing but Kafka."""
    context.obj = Flags(kafka=kafka, ns=ns, key=key, log_level=log_level)


def parse_object(text: bytes | str, hint: str) -> dict[str, Any]:
    """A JSON object that was given as an option.

    Raises:
        typer.BadParameter: it is not one.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise typer.BadParameter(f"no valid JSON: {error}", param_hint=hint) from error
    if not isinstance(value, dict):
        raise typer.BadParameter("must be a JSON object", param_hint=hint)
    return value


def read_text(file: Path) -> bytes:
    """A file's bytes, or standard input's for `-`.

    Raises:
        typer.BadParameter: it cannot be read.
    """
    if str(file) == "-":
        return typer.get_binary_stream("stdin").read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from error
