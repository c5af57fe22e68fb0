"""`broker-engine workflow retry|rerun|restart|remove|skip-task|update-variables`."""

from __future__ import annotations

from typing import Annotated

import typer

from broker_engine.cli import output
from broker_engine.cli.session import Session, command, parse_object
from broker_engine.model.state import present

WorkflowArgument = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")]


def add_to_workflows(app: typer.Typer) -> None:
    """The commands about one workflow."""

    @command(
        app,
        "retry",
        example="broker-engine workflow retry order-7\nbroker-engine workflow retry order-7 --resume-sub-workflows",
    )
    def retry(
        session: Session,
        workflow_id: WorkflowArgument,
        resume: Annotated[
            bool,
            typer.Option("--resume-sub-workflows", help="Let failed sub-workflows go on instead of beginning anew."),
        ] = False,
    ) -> None:
        """Try again what failed in a workflow that has ended; what was done stays done."""
        session.client().retry(workflow_id, resume_sub_workflows=resume)
        _done(session, workflow_id, "retried")

    @command(
        app,
        "rerun",
        example="""broker-engine workflow rerun order-7 --from charge
    broker-engine workflow rerun order-7 --from charge --task-input '{"amount": 5}'
    broker-engine workflow rerun order-7 --input '{"customer": "Ann"}'""",
    )
    def rerun(
        session: Session,
        workflow_id: WorkflowArgument,
        task: Annotated[
            str | None,
            typer.Option("--from", metavar="TASK", help="A task's reference or id (default: from the beginning)."),
        ] = None,
        task_input: Annotated[str | None, typer.Option(metavar="JSON", help="In place of the task's input.")] = None,
        workflow_input: Annotated[
            str | None, typer.Option("--input", metavar="JSON", help="In place of the workflow's input.")
        ] = None,
        correlation_id: Annotated[str | None, typer.Option(help="In place of the workflow's.")] = None,
    ) -> None:
        """Run an ended workflow again from a task on; what does not follow that task stays as it is."""
        if task_input is not None and task is None:
            raise typer.BadParameter("it belongs to the task of --from", param_hint="--task-input")
        client = session.client()
        task_id, reference = task, None
        if task is not None:
            view = client.get(workflow_id)
            named = [t for t in present(view.workflow, view.tasks) if task in (t.reference, t.task_id)]
            if named:
                task_id, reference = named[-1].task_id, named[-1].reference
        client.rerun(
            workflow_id,
            task_id,
            reference=reference,
            task_input=parse_object(task_input, "--task-input") if task_input is not None else None,
            workflow_input=parse_object(workflow_input, "--input") if workflow_input is not None else None,
            correlation_id=correlation_id,
        )
        _done(session, workflow_id, "runs again")

    @command(
        app,
        "restart",
        example="broker-engine workflow restart order-7\nbroker-engine workflow restart order-7 --use-latest",
    )
    def restart(
        session: Session,
        workflow_id: WorkflowArgument,
        use_latest: Annotated[
            bool, typer.Option("--use-latest", help="By the newest definition instead of the one it ran by.")
        ] = False,
    ) -> None:
        """Run an ended workflow again from the beginning, with its input."""
        session.client().restart(workflow_id, use_latest=use_latest)
        _done(session, workflow_id, "restarted")

    @command(app, "remove", example="broker-engine workflow remove order-7")
    def remove(session: Session, workflow_id: WorkflowArgument) -> None:
        """Forget an ended workflow now instead of at the end of its retention."""
        session.client().remove(workflow_id)
        _done(session, workflow_id, "removed")

    @command(
        app,
        "skip-task",
        example="""broker-engine workflow skip-task order-7 approve
    broker-engine workflow skip-task order-7 approve --output '{"by": "Ann"}'""",
    )
    def skip_task(
        session: Session,
        workflow_id: WorkflowArgument,
        reference: Annotated[str, typer.Argument(metavar="REFERENCE", help="A task that has not begun.")],
        output_json: Annotated[
            str | None, typer.Option("--output", metavar="JSON", help="What stands in place of its output.")
        ] = None,
    ) -> None:
        """Jump over a task when the workflow reaches it."""
        data = parse_object(output_json, "--output") if output_json is not None else None
        session.client().skip_task(workflow_id, reference, output=data)
        _done(session, workflow_id, f"{reference} is skipped when it is reached")

    @command(
        app,
        "update-variables",
        example="""broker-engine workflow update-variables order-7 '{"limit": 10}'""",
    )
    def update_variables(
        session: Session,
        workflow_id: WorkflowArgument,
        variables: Annotated[str, typer.Argument(metavar="JSON", help="The values to set; others stay.")],
    ) -> None:
        """Set variables of a workflow that runs."""
        session.client().update_variables(workflow_id, parse_object(variables, "JSON"))
        _done(session, workflow_id, "variables updated")


def _done(session: Session, workflow_id: str, status: str) -> None:
    if session.json:
        output.json_out({"workflowId": workflow_id, "status": status})
    else:
        output.line(f"{workflow_id}: {status}")
