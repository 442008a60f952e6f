"""The command line, one command per file. Heavy modules are imported only when a command runs."""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext

import typer

from callslip import __version__
from callslip.cli import terminal
from callslip.errors import CallslipError
from callslip.runtime.patience import patience
from callslip.runtime.process import outside_imports, prepare_threads

SEARCHING = (["search"], ["evaluate"], ["serve"])
"""Commands with short computations, whose threads should sleep instead of spinning while idle."""
WAIT = 60.0
"""Timeout in seconds for a lock held by another process."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, by the shell's convention; typer exits with it silently if a command is interrupted."""

app = typer.Typer(
    name="callslip",
    help="Generative retrieval: every document has a short code, and a model answers a query by writing codes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if show:
        terminal.echo(f"callslip {__version__}")
        raise typer.Exit


def register() -> None:
    """Import every module of this package, so that its commands are registered."""
    from callslip.cli import (  # noqa: F401
        add,
        build,
        check,
        codes,
        compact,
        compare,
        delete,
        demo,
        encode,
        evaluate,
        fit,
        inspect,
        learn,
        mcp,
        methods,
        plan,
        push,
        report,
        search,
        serve,
        share,
        snapshot,
        train,
        update,
    )


def main() -> None:
    """Run a command. User errors are printed without a traceback; Ctrl-C exits with 130."""
    searching = sys.argv[1:2] in SEARCHING
    prepare_threads(searching=searching)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # neither ignored nor replaced by the caller
        signal.signal(signal.SIGINT, outside_imports(signal.default_int_handler))
    terminal.guard()
    register()

    try:
        # A search takes no lock, and a server waits as long as a request may take.
        with nullcontext() if searching else patience(WAIT, terminal.say):
            app()
    except CallslipError as error:
        terminal.echo("error: ", fg="red", bold=True, nl=False, err=True)
        terminal.say(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        terminal.say("interrupted; encoded vectors stay in the cache, nothing else was changed")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `callslip search … | head`
        sys.stderr.close()
        sys.exit(141)
