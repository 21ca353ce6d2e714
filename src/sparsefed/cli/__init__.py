"""The command line: parse -> config -> build -> loop. Holds no logic; errors a user can fix are one sentence.

Exit codes: 0 done; 1 an audit that is not as required (`audit --require held`); 2 a command, config, run folder or data
set that must be fixed first; 130 interrupted (Ctrl-C or SIGTERM) after saving.
"""

from __future__ import annotations

import logging
import sys
from typing import NoReturn

from rich.logging import RichHandler
from rich.markup import escape

from sparsefed.cli.analyses import audit, certify, choose_k, demo, reproduce, tune
from sparsefed.cli.app import app, errors
from sparsefed.cli.deployment import deploy, watch
from sparsefed.cli.doctor import doctor
from sparsefed.cli.listing import init, list_
from sparsefed.cli.runs import report, resume, run
from sparsefed.cli.sweep import sweep
from sparsefed.core.errors import SparseFedError
from sparsefed.core.malloc import keep_freed_memory

__all__ = ["app", "main"]

DEBUG = "--debug"
COMMANDS = (
    demo,
    init,
    audit,
    run,
    resume,
    report,
    watch,
    sweep,
    tune,
    choose_k,
    certify,
    reproduce,
    deploy,
)  # as `--help` lists them
for command in COMMANDS:
    app.command()(command)
app.command("list")(list_)
app.command()(doctor)


def main() -> None:
    """Run the command line; a `SparseFedError` becomes a sentence on stderr and exit code 2, never a traceback."""
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False)]
    )
    _say_what_is_compiled()
    keep_freed_memory()
    debug = DEBUG in sys.argv[1:]
    sys.argv[1:] = [part for part in sys.argv[1:] if part != DEBUG]  # wherever it stands
    try:
        app()
    except Exception as error:
        if debug:
            raise
        _fail(_sentence(error))


def _sentence(error: Exception) -> str:
    """Return what happened in one sentence: ours where there is one, else where in whose code it happened."""
    if isinstance(error, SparseFedError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check that the path is right and may be used"
    from sparsefed.config.foreign import located, users_frame

    theirs = "mend that line" if users_frame(error) else "this is a mistake of SparseFed's: please report it"
    return f"{located(error)}; {theirs}, and {DEBUG} shows the traceback"


def _say_what_is_compiled() -> None:
    """Print compilation messages plainly: a wait that happens once is news, not a warning."""
    logger = logging.getLogger("sparsefed.kernels.compilation")
    logger.addHandler(RichHandler(console=errors, show_path=False, show_level=False, show_time=False))
    logger.propagate = False


def _fail(sentence: str) -> NoReturn:
    errors.print(f"[bold red]error:[/bold red] {escape(sentence)}", soft_wrap=True, highlight=False)
    sys.exit(2)
