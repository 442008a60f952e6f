"""The command line. One command a file; nothing heavy is imported before a command runs."""

from __future__ import annotations

import signal
import sys

import typer

from callslip import __version__
from callslip.cli import terminal
from callslip.errors import CallslipError
from callslip.runtime import threads
from callslip.runtime.interrupts import outside_imports
from callslip.runtime.patience import patience

SEARCHING = (["search"], ["evaluate"], ["serve"])
"""Commands that compute little at a time, and should not take a core that others need while they wait."""
WAIT = 60.0
"""Seconds that a command waits for another process which holds a lock."""
INTERRUPTED = 130
"""What a shell expects after Ctrl-C. typer makes an exit with it of an interrupted command, and says nothing."""

app = typer.Typer(
    name="callslip",
    help="Generative retrieval: documents get short codes, a model learns to write them, search lets it write.",
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
    """Import every command: a module of this package that defines one registers it."""
    from callslip.cli import (  # noqa: F401
        add,
        check,
        compact,
        compare,
        delete,
        demo,
        evaluate,
        fit,
        inspect,
        methods,
        report,
        search,
        serve,
        share,
        snapshot,
        update,
    )


def main() -> None:
    """Run a command. User errors are printed without a traceback; an interrupt ends with 130."""
    threads.prepare(searching=sys.argv[1:2] in SEARCHING)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # neither ignored nor a caller's own
        signal.signal(signal.SIGINT, outside_imports(signal.default_int_handler))
    terminal.guard()
    register()

    try:
        with patience(WAIT, terminal.say):
            app()
    except CallslipError as error:
        terminal.echo("error: ", fg="red", bold=True, nl=False, err=True)
        terminal.say(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        terminal.say("interrupted; vectors that were encoded are kept, nothing else was changed")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `callslip search … | head`
        sys.stderr.close()
        sys.exit(141)
