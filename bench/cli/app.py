"""The application: its commands. Bad input ends every command with one message and exit code 2."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from bench import __version__
from bench.errors import InputError, one_line
from bench.store.secrets import mask

REPORTS = Path("reports")
"""The folder that holds all runs, unless --out names another one."""

COMMANDS = {
    "doctor": ("doctor:doctor", "Check what this machine can run and what is missing"),
    "init": ("init:init", "Write a workload and a matrix to start from"),
    "plan": ("plan:plan", "Predict memory, the largest batch and the step time"),
    "run": ("run:run", "Measure every cell of a matrix, or resume a run"),
    "probe": ("run:probe", "Find the largest batch that fits and the fastest one"),
    "cancel": ("cancel:cancel", "End the jobs of a run on a cluster"),
    "calibrate": ("calibrate:calibrate", "Measure how much repeated launches differ on this machine"),
    "report": ("report:report", "Show runs as tables, markdown, a web page or data"),
    "compare": ("compare:compare", "Compare two runs of a matrix and find regressions"),
    "show": ("show:show", "Show everything about one cell"),
    "explain": ("explain:explain", "Explain where the time of a step goes, or why one cell is slower"),
    "audit": ("audit:audit", "Check a cell's collectives, data loading or unused parameters"),
    "import": ("import_:import_", "Import figures measured elsewhere as a run"),
    "matrices": ("named_texts:matrices", "List the matrices that come with bench, or print one"),
    "export": ("export:export", "Add results to W&B, MLflow or trackio, without a network"),
    "schema": ("schema:schema", "Print the JSON Schema of a matrix file or a stored result"),
    "guide": ("named_texts:guide", "List the guides, or print one"),
}
"""In the order of use: the module below `bench.cli` with its function, and the help in one line. The help is repeated
here so that `bench --help` imports no command; a test compares both."""


HEADINGS = ("Arguments", "What to measure", "Search", "How to measure", "Where", "Output", "Options")
"""The groups of options in ``--help``, in this order. An option names its group as ``rich_help_panel``."""


class Command(TyperCommand):
    """Prints its options under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[Any]] = {heading: [] for heading in HEADINGS}
        for parameter in self.get_params(ctx):
            if (line := parameter.get_help_record(ctx)) is not None:
                is_argument = parameter.param_type_name == "argument"
                heading = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
                groups[heading].append(line)
        for heading, lines in groups.items():
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)


class Commands(TyperGroup):
    """Imports a command when it is called. Turns bad input into one message and exit code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, help_) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=help_))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        return load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_) for name, (_, help_) in COMMANDS.items()])

    def make_context(self, *args: Any, **settings: Any) -> Any:  # prints --help and --version
        with _errors_for_people():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        with _errors_for_people():
            return super().invoke(ctx)


@contextmanager
def _errors_for_people() -> Iterator[None]:
    """One message and an exit code, whatever a command raises but its own bugs."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except SystemExit:  # a signal ended it, perhaps that of a terminal that is gone
        from bench.cli.printing import flush

        flush()
        raise
    except InputError as error:
        _print_error(error)
        raise typer.Exit(2) from error
    except BrokenPipeError as error:
        from bench.cli.printing import forget_stdout

        forget_stdout()
        raise typer.Exit(128 + signal.SIGPIPE) from error
    except OSError as error:
        where = str(error.filename) if error.filename else None
        _print_error(InputError(error.strerror or str(error), where=where))
        from bench.cli.printing import flush
        from bench.store import jobs

        flush()
        raise typer.Exit(2 if jobs.this_job() is None else 1) from error  # the node's fault, not that of the matrix
    except Exception as error:
        # typer's own message about an option; without a subcommand, the message is the whole help
        if hasattr(error, "format_message") and type(error).__name__ != "NoArgsIsHelpError":
            message = one_line(getattr(error, "message", "").replace("Value error, ", "", 1), 480)
            if fix := _as_a_field(error):
                message, error.possibilities = f"{message}. {fix}", []  # type: ignore[attr-defined]
            error.message = message  # type: ignore[attr-defined]
        raise


def _as_a_field(error: Any) -> str | None:
    """Of an unknown option that has the name of an axis or of a field of the matrix: how to set it."""
    option = str(getattr(error, "option_name", None) or "").removeprefix("--")
    name = option.rpartition(".")[2].replace("-", "_")
    if not name or error.ctx is None or not any(each.name == "overrides" for each in error.ctx.command.params):
        return None
    from bench.matrix.matrix_file import OWN_AXES, MatrixFile

    if name in OWN_AXES:
        return f"To set the axis, write --axis {name}=VALUES"
    sections = MatrixFile.model_fields.items()
    fields = [
        f"{section}.{name}" for section, field in sections if name in getattr(field.annotation, "model_fields", {})
    ]
    return f"To set the field, write {fields[0]}=VALUE" if fields else None


def load(name: str) -> Any:
    """The command called ``name``, as typer runs it."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(import_module(f"bench.cli.{module}"), attribute)
    if not isinstance(command, typer.Typer):  # a function; a Typer has commands of its own
        function, command = command, typer.Typer(add_completion=False, rich_markup_mode=None)
        command.command(name, cls=Command)(function)
    return typer.main.get_command(command)


def _print_error(error: InputError) -> None:
    typer.echo(f"bench: {mask(str(error))}", err=True)  # loading the user's own module may raise anything, secrets too


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich takes longer than all the rest of --help
    context_settings={"max_content_width": 100},
)


@app.callback(help="Compare training backends, batch sizes and settings on your own hardware.")
def root(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print bench's version.")
    ] = False,
) -> None: ...
