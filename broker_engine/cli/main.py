"""`broker-engine`: a thin table of sub-commands.

Each noun or role is a typer app in its own file beside this one; adding one is one row in `COMMANDS`. The only
behaviour here: a command's module is imported when the command is used, because all of them together take a second.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from broker_engine.cli.session import root

#: The module of each command, in the order of the help.
COMMANDS: Mapping[str, str] = {
    "dev": "broker_engine.cli.dev",
    "demo": "broker_engine.cli.demo.command",
    "task": "broker_engine.cli.task",
    "workflow": "broker_engine.cli.workflow",
    "schedule": "broker_engine.cli.schedules",
    "queue": "broker_engine.cli.queues",
    "starts": "broker_engine.cli.starts",
    "limits": "broker_engine.cli.limits",
    "topics": "broker_engine.cli.topics",
    "dead-letters": "broker_engine.cli.dead_letters",
    "config": "broker_engine.cli.config",
    "kafka": "broker_engine.cli.kafka",
    "decider": "broker_engine.cli.decider",
    "delays": "broker_engine.cli.delays",
    "gateway": "broker_engine.cli.gateway",
    "worker": "broker_engine.cli.worker",
    "system": "broker_engine.cli.system",
}
#: Commands of one word; the others have verbs.
ROLES = frozenset({"dev", "demo", "decider", "delays", "gateway", "worker", "system"})


class Table(TyperGroup):
    """The commands, each imported when it is asked for."""

    # Any: typer's own Context and Command are private to it. ARG002: the names are the base class's.
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        sub_app: typer.Typer = import_module(COMMANDS[cmd_name]).app
        sub_app.rich_markup_mode = app.rich_markup_mode
        command = get_command(sub_app) if cmd_name in ROLES else get_group(sub_app)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="broker-engine",
    cls=Table,
    help="A durable task and workflow engine that needs nothing but Kafka.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # locals may hold task input
)
app.callback()(root)

if __name__ == "__main__":
    app()
