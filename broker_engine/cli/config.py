"""`broker-engine config`: the settings in force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from broker_engine.cli import output
from broker_engine.cli.session import Session, command

app = typer.Typer(help="Look at the settings.", no_args_is_help=True)


@command(app, "show", example="BROKER_ENGINE_NAMESPACE=shop broker-engine config show")
def show(session: Session) -> None:
    """Print the settings that a command would use here and now; secrets are hidden."""
    values = session.settings.shown()
    if session.json:
        output.json_out(values)
        return
    output.table(("VARIABLE", "VALUE"), _flat("BROKER_ENGINE_", values), empty="No settings.")


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The settings by the names of the variables that set them; options of librdkafka keep their own spelling."""
    for name, value in values.items():
        variable = prefix + (name if prefix.endswith("CONF__") else name.upper())
        if isinstance(value, Mapping):
            yield from _flat(f"{variable}__", value)
        else:
            yield variable, value
