"""`broker-engine`: a thin table of sub-commands.

Each noun or role is a typer app in its own file beside this one; adding one is one import and one row in `NOUNS` or
`ROLES`. This file holds no behaviour.
"""

from collections.abc import Mapping

import typer

from broker_engine.cli import config, dead_letters, decider, delays, dev, kafka, task, topics, worker, workflow
from broker_engine.cli.demo import command as demo
from broker_engine.cli.session import root

#: Commands with verbs.
NOUNS: Mapping[str, typer.Typer] = {
    "task": task.app,
    "workflow": workflow.app,
    "topics": topics.app,
    "dead-letters": dead_letters.app,
    "config": config.app,
    "kafka": kafka.app,
}
#: Commands of one word.
ROLES: tuple[typer.Typer, ...] = (dev.app, demo.app, decider.app, delays.app, worker.app)

app = typer.Typer(
    name="broker-engine",
    help="A durable task and workflow engine that needs nothing but Kafka.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # locals may hold task input
)
app.callback()(root)

for name, sub_app in NOUNS.items():
    app.add_typer(sub_app, name=name)
for role_app in ROLES:
    app.add_typer(role_app)

if __name__ == "__main__":
    app()
