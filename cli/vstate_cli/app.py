"""The `vstate` command as a whole: its commands, and what becomes of errors."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import IO, Any, NoReturn

import click

import vstate
from vstate.errors import VStateError
from vstate_cli.commands.bisect import bisect
from vstate_cli.commands.blame import blame
from vstate_cli.commands.branch import branch
from vstate_cli.commands.checkout import checkout
from vstate_cli.commands.clone import clone
from vstate_cli.commands.completion import completion
from vstate_cli.commands.diff import diff
from vstate_cli.commands.export import export
from vstate_cli.commands.fetch import fetch
from vstate_cli.commands.fsck import fsck
from vstate_cli.commands.gc import gc
from vstate_cli.commands.import_ import import_
from vstate_cli.commands.key import key
from vstate_cli.commands.log import log
from vstate_cli.commands.ls import ls
from vstate_cli.commands.pull import pull
from vstate_cli.commands.push import push
from vstate_cli.commands.reflog import reflog
from vstate_cli.commands.remote import remote
from vstate_cli.commands.rollback import rollback
from vstate_cli.commands.show import show
from vstate_cli.commands.status import status
from vstate_cli.commands.tag import tag
from vstate_cli.commands.undo import undo
from vstate_cli.commands.verify import verify
from vstate_cli.output import safe
from vstate_cli.session import STORE_HELP
from vstate_cli.store import VARIABLE

DEBUG = "VSTATE_DEBUG"

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
BROKEN_PIPE = 141  # 128 + SIGPIPE

_GOES_ON = ("clone", "push", "pull", "fetch", "import")  # run again, they go on where they were interrupted


class Failure(click.ClickException):
    """An error in one line on standard error; exit 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        print(f"vstate: {self.message}", file=file or sys.stderr)


class App(click.Group):
    """The group of all commands, which turns what they raise into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        # As they were added, what is used most first, not by the alphabet.
        return [*self.commands]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except VStateError as error:
            _fail(safe(str(error)))
        except KeyboardInterrupt:
            print(file=sys.stderr)
            if ctx.invoked_subcommand in _GOES_ON:
                print("vstate: interrupted; run it again, and it goes on where it was", file=sys.stderr)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _silence()
            ctx.exit(BROKEN_PIPE)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except OSError as error:
            _fail(safe(str(error)))
        except Exception as error:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            _fail(f"internal error: {safe(what)}; run with {DEBUG}=1 for a traceback")


def _fail(message: str) -> NoReturn:
    if os.environ.get(DEBUG):
        traceback.print_exc()
    try:
        sys.stdout.flush()
    except OSError:
        _silence()
    raise Failure(message)


def _silence() -> None:
    """Write nothing more: what is buffered for a reader that has gone would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=App,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  $ vstate log -n 5\n  $ vstate diff HEAD~3 --stat\n  $ vstate -s agent-state show HEAD plan",
)
@click.option("-s", "--store", metavar="PATH|URL", envvar=VARIABLE, show_envvar=True, help=STORE_HELP)
@click.version_option(vstate.__version__, prog_name="vstate")
@click.pass_context
def cli(context: click.Context, store: str | None) -> None:
    """Look at, and move about in, the history of a vstate store.

    A revision (REV) is a commit id or its first 4 or more digits, a branch, a tag, a branch of a remote
    (origin/main), HEAD, or where a branch was: main@{N}, N moves ago, or main@{2026-11-20 10:00},
    main@{yesterday}, main@{2 hours ago}; each with ~N (N commits back) or ^N (the N-th parent) behind it. Where two
    have one name, heads/NAME, tags/NAME and remotes/NAME say which is meant. Nothing that is stored is ever run:
    values are shown as plain data, objects as records of their class and fields.
    """
    context.obj = store


for _command in (
    log,
    show,
    diff,
    checkout,
    ls,
    branch,
    tag,
    rollback,
    undo,
    reflog,
    blame,
    bisect,
    status,
    clone,
    push,
    pull,
    fetch,
    remote,
    gc,
    fsck,
    export,
    import_,
    verify,
    key,
    completion,
):
    cli.add_command(_command)


def main() -> None:
    """The entry point."""
    # A service may have closed them.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # open to the end
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character is shown its number.
            stream.reconfigure(errors="backslashreplace")
    try:
        cli(prog_name="vstate")
    except OSError as error:  # click prints help by itself
        _silence()
        print(f"vstate: {error}", file=sys.stderr)
        sys.exit(1)
