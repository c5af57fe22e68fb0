"""`broker-engine kafka`: a local broker for development and tests."""

import typer

app = typer.Typer(help="Run a local Kafka broker.", no_args_is_help=True)
