"""The front door: commands, and how their errors are reported.

An error is one line on standard error and an exit code: 0 done, 2 configuration, 3 data,
4 run failed, 5 checkpoint or disk, 130 interrupted, 141 nobody read the output. A traceback comes
only with `--debug`, which every command takes, before its name or behind it.
"""

import sys
import traceback
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

import coterie
from coterie.cli import (
    clean,
    compare,
    deploy,
    doctor,
    download,
    evaluate,
    export,
    listing,
    partition,
    predict,
    report,
    reproduce,
    run,
)
from coterie.cli.options import Debug, PlainCommand
from coterie.cli.terminal import echo
from coterie.core import interrupts
from coterie.core.errors import CoterieError
from coterie.core.formatting import one_line

app = typer.Typer(
    name="coterie",
    help="Federated contrastive learning on skewed, often unlabelled data.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: paragraphs wrap at words, and a flag names no type
)
_COMMANDS: dict[str, tuple[Callable[..., None], str]] = {  # with the line in the list of them
    "run": (run.run, "Train a method."),
    "predict": (predict.predict, "Predict the class of every sample."),
    "embed": (predict.embed, "Compute the representation of every sample."),
    "evaluate": (evaluate.evaluate, "Measure a finished run again."),
    "export": (export.export, "Write a trained network to a file."),
    "clean": (clean.clean, "Remove what only resuming needs from a finished run."),
    "compare": (compare.compare, "Run several methods in one setting, in one table."),
    "sweep": (compare.sweep, "Run one method over a grid of values."),
    "reproduce": (reproduce.reproduce, "Run the table of a paper again."),
    "report": (report.report, "Write one page for one run or many."),
    "partition": (partition.partition, "Show who would hold what, without training."),
    "download": (download.download, "Download a data set from its official URL."),
    "list": (listing.show, "List what a configuration may name."),
    "doctor": (doctor.doctor, "Describe this machine, and check that all works."),
}
for _name, (_command, _line) in _COMMANDS.items():
    app.command(_name, cls=PlainCommand, short_help=_line)(_command)
app.add_typer(deploy.app, name="deploy")


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Debug = False,
) -> None:
    if debug:  # the default of the command behind it
        context.default_map = {str(context.invoked_subcommand): {"debug": True}}
    if version:
        typer.echo(f"coterie {coterie.__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command within a program, and exit with its code."""
    interrupts.install()
    sys.exit(call(sys.argv[1:] if arguments is None else arguments))


def call(arguments: list[str]) -> int:
    """Run a command; return its exit code."""
    if "" not in sys.path:  # "my_module:Class" is looked for here too, as `python -m coterie` does
        sys.path.append("")
    try:
        result = app(arguments, standalone_mode=False)
        code = result if isinstance(result, int) else 0
        # typer turns an interrupt between runs into a code
        return _say("interrupted", code) if code == interrupts.INTERRUPTED else code
    except KeyboardInterrupt:
        return _say("interrupted", interrupts.INTERRUPTED)
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return _explain(error)


def _explain(error: Exception) -> int:
    if isinstance(error, CoterieError):
        return _say(str(error), error.exit_code)
    if hasattr(error, "format_message"):  # the command line itself could not be read
        text = error.format_message()
        if "\n" in text:  # the help, for want of a command
            typer.echo(text)
            text = "a command is missing"
        return _say(f"{text} (coterie --help)", 2)
    return _say(f"{type(error).__name__}: {error} (this is a bug; --debug shows where)", 4)


def _say(text: str, code: int) -> int:
    echo(f"coterie: {one_line(text)}", err=True)
    return code
