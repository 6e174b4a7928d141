"""The `vstate` command as a whole: its subcommands, and the exit code of each error."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from importlib import import_module
from typing import IO, Any, NoReturn

import click

import vstate
from vstate.errors import VStateError
from vstate.similar import similar
from vstate_cli.output import safe
from vstate_cli.session import STORE_HELP
from vstate_cli.store import VARIABLE

DEBUG = "VSTATE_DEBUG"

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
BROKEN_PIPE = 141  # 128 + SIGPIPE

GROUPS = {
    "Look": (
        "log",
        "show",
        "diff",
        "ls",
        "grep",
        "blame",
        "bisect",
        "status",
        "reflog",
        "runs",
        "watch",
        "view",
    ),
    "Move": ("checkout", "switch", "reset", "rollback", "undo", "redo", "revert"),
    "Branch and merge": ("branch", "tag", "merge", "cherry-pick"),
    "Files": ("files",),
    "Share": ("clone", "push", "pull", "fetch", "remote", "export", "import"),
    "Take care": ("gc", "keep", "erase", "fsck", "check-classes", "verify", "key"),
    "For agents and shells": ("mcp", "completion"),
}
"""The commands in the order of the help, frequent ones first."""

COMMANDS = tuple(name for names in GROUPS.values() for name in names)

_MODULES = {
    "classes": ("check-classes",),
    "bundles": ("export", "import"),
    "keys": ("ls", "grep"),
    "live": ("watch", "view"),
    "merging": ("merge", "cherry-pick", "revert"),
    "moving": ("checkout", "switch", "reset", "rollback", "undo", "redo", "reflog"),
    "names": ("branch", "tag", "remote"),
    "sharing": ("clone", "push", "pull", "fetch"),
    "signing": ("verify", "key"),
    "upkeep": ("gc", "keep", "fsck"),
    "workspace": ("files",),
}
"""The modules in `commands` with several commands; any other command is in the module of its own name."""

_PYTHON = "It needs Python, because this command stores no values"
ELSEWHERE = {
    "set": f"{_PYTHON}: state['KEY'] = VALUE; state.commit().",
    "delete": f"{_PYTHON}: del state['KEY']; state.commit().",
    "rm": f"{_PYTHON}: del state['KEY']; state.commit().",
    "add": f"{_PYTHON}: state['KEY'] = VALUE; state.commit().",
    "commit": f"{_PYTHON}: state.commit('message').",
    "init": "A store is made by its first use: Versioned('.vstate') in Python, or `vstate clone`.",
    "stash": f"{_PYTHON}: state.commit('wip'); state.create_branch('NAME'); state.undo(). "
    "Later: state.cherry_pick('NAME').",
    "mv": f"{_PYTHON}: state['NEW'] = state.pop('KEY'); state.commit().",
    "clean": f"{_PYTHON}: state.discard().",
    "worktree": "In Python: files.fork('NAME', DIRECTORY) of a Workspace. `vstate files` lists all.",
    "rebase": "History is not rewritten: use `vstate cherry-pick` or `vstate merge`.",
    "filter-branch": "To remove a key from every commit, use `vstate erase KEY`.",
    "filter-repo": "To remove a key from every commit, use `vstate erase KEY`.",
    "forget": "Use `vstate erase KEY` for a key, and `vstate branch -d BRANCH --forget` for a branch.",
    "restore": "Use `vstate checkout REV -- KEY`.",
    "get": "Use `vstate show KEY`.",
    "cat": "Use `vstate show KEY`.",
    "cat-file": "Use `vstate show REV`.",
    "keys": "Use `vstate ls`.",
    "list": "Use `vstate ls`.",
    "ls-files": "Use `vstate ls`.",
    "ls-tree": "Use `vstate ls REV`.",
    "shortlog": "Use `vstate log --oneline`.",
    "whatchanged": "Use `vstate log -p`.",
    "rev-parse": "Use `vstate log -1 --json REV`.",
    "rev-list": "Use `vstate log --json`.",
    "history": "Use `vstate log`.",
    "annotate": "Use `vstate blame KEY`.",
    "fork": "Use `vstate branch NAME` or `vstate checkout -b NAME`.",
    "prune": "Use `vstate gc`.",
    "bundle": "Use `vstate export` and `vstate import`.",
    "archive": "Use `vstate export`.",
    "format-patch": "Use `vstate export`.",
    "backup": "Use `vstate clone` or `vstate export`.",
    "describe": "Use `vstate status`.",
    "version": "Use `vstate --version`.",
    "config": "The store is named by --store or VSTATE_STORE, and a state's options are given in Python.",
    "merge-base": "Use `vstate log A..B` for the commits of B that A lacks.",
    "check": "Use `vstate fsck`.",
    "repair": "Use `vstate fsck --repair`.",
    "verify-commit": "Use `vstate verify`.",
    "sign": "Use `vstate key`.",
}
"""Where to find words of git and Python that are no command here."""

_WIDEST = max(map(len, COMMANDS))
_RESUMABLE = ("clone", "push", "pull", "fetch", "import")


def load(name: str) -> click.Command:
    """The command of this name. All of them together take 25 ms, a tenth of a short run."""
    module = next((module for module, names in _MODULES.items() if name in names), name)
    # `import` is a keyword, and the name of a function has no hyphen.
    function = "import_" if name == "import" else name.replace("-", "_")
    command: click.Command = getattr(import_module(f"vstate_cli.commands.{module}"), function)
    return command


class Failure(click.ClickException):
    """An error in one line on standard error, with exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        print(f"vstate: {self.message}", file=file or sys.stderr)


class App(click.Group):
    """All commands. Loads only the one that runs, and turns its errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":  # as git
            args = [*args[1:2], "--help"]
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            close = similar(name, COMMANDS)
            hint = ELSEWHERE.get(name) or (f"Did you mean {' or '.join(close)}?" if close else "")
            raise click.UsageError(f"No such command {name!r}. {hint}".rstrip(), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            limit = formatter.width - 6 - _WIDEST
            with formatter.section(title):
                commands = {name.ljust(_WIDEST): self.get_command(ctx, name) for name in names}
                helps = [(name, each.get_short_help_str(limit)) for name, each in commands.items() if each]
                formatter.write_dl(helps)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except VStateError as error:
            # The library speaks of its arguments, and the command of its options.
            _fail(safe(re.sub(r"(?<!, )\b(force|create)=True", r"--\1", str(error))))
        except KeyboardInterrupt:
            print(file=sys.stderr)
            if ctx.invoked_subcommand in _RESUMABLE:
                print("vstate: interrupted; run the command again to continue", file=sys.stderr)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _silence()
            ctx.exit(BROKEN_PIPE)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except OSError as error:
            _fail(safe(str(error)))
        except Exception as error:  # a bug; people get one line, and developers can ask for the traceback
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            _fail(f"internal error: {safe(text)}; run with {DEBUG}=1 for a traceback")


def _fail(message: str) -> NoReturn:
    if os.environ.get(DEBUG):
        traceback.print_exc()
    try:
        sys.stdout.flush()
    except OSError:
        _silence()
    raise Failure(message)


def _silence() -> None:
    """Discard the buffered output. Its reader is gone, and Python would fail to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=App,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  $ vstate log -n 5\n  $ vstate diff HEAD~3 --stat\n"
    "  $ vstate -s agent-state show HEAD plan",
)
@click.option("-s", "--store", metavar="PATH|URL", envvar=VARIABLE, show_envvar=True, help=STORE_HELP)
@click.option("--no-pager", is_flag=True, help="Print long output on a terminal without a pager.")
@click.version_option(vstate.__version__, prog_name="vstate")
def cli(store: str | None, no_pager: bool) -> None:
    """Inspect a vstate store, and move through its history.

    A revision (REV) is one of these: a commit id, or its first 4 or more digits; a branch; a tag; a branch
    of a remote (origin/main); HEAD; an earlier position of a branch (main@{2}, two moves ago,
    main@{yesterday}, main@{2 hours ago} or main@{2026-11-20 10:00}). ~N behind a revision goes N commits
    back, ^N to the N-th parent. If two refs share a name, write heads/NAME, tags/NAME or remotes/NAME.

    The command never runs stored code. It shows values as plain data, and objects as records of class and
    fields.
    """


def main() -> None:
    """The entry point."""
    # A service may start a process with both closed.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # open until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  # open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character shows its number.
            stream.reconfigure(errors="backslashreplace")
    try:
        cli(prog_name="vstate")
    except OSError as error:  # click prints help outside of `invoke`
        _silence()
        print(f"vstate: {error}", file=sys.stderr)
        sys.exit(1)
