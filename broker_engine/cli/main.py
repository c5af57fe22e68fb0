"""`broker-engine`: a thin table of sub-commands.

Each noun or role is a typer app in its own file beside this one; adding one is one import and one
row in `NOUNS`. This file holds no behaviour.
"""

from collections.abc import Mapping

import typer

from broker_engine.cli import kafka

NOUNS: Mapping[str, typer.Typer] = {
    "kafka": kafka.app,
}

app = typer.Typer(
    name="broker-engine",
    help="A durable task and workflow engine that needs nothing but Kafka.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # locals may hold task input
)

for name, sub_app in NOUNS.items():
    app.add_typer(sub_app, name=name)

if __name__ == "__main__":
    app()
