"""A progress bar for the one slow moment: fetching the jars on the first start."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from broker_engine.runtime.local_broker.jars import Progress


@contextmanager
def jar_progress(console: Console | None = None) -> Iterator[Progress]:
    """Yield a `progress` argument; nothing is drawn unless jars are fetched.

    Drawn on standard error, so that `--json` on standard output stays readable by programs.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = Bar(*columns, console=console or Console(stderr=True), transient=False)
    task = bar.add_task("Fetching Kafka 4.4.0, once per machine", start=True, visible=False)

    def progress(present: int, total: int) -> None:
        if not bar.live.is_started:
            bar.start()
        bar.update(task, completed=present, total=total, visible=True)
        if present == total:
            bar.stop()

    try:
        yield progress
    finally:
        bar.stop()
