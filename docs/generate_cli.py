"""Writes docs/cli.md, the reference of the command line, from the commands themselves.

python docs/generate_cli.py            write it
python docs/generate_cli.py --check    exit 1 if what is there is stale
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from vstate_cli.app import cli

PAGE = Path(__file__).with_name("cli.md")

INTRODUCTION = """\
# The command line

<!-- Written by docs/generate_cli.py from the commands. Do not edit: change the command, then run `make docs`. -->
"""

GENERAL = """\
## What holds for every command

- **Which store.** `-s`/`--store PATH|URL`, before or behind the command's name, else the environment variable
  `VSTATE_STORE`, else a directory `.vstate` here or in a parent. In a URL, `${NAME}` stands for that variable of the
  environment: `-s 'redis://:${REDIS_PASSWORD}@host/0'` shows no password to who lists the processes. Only
  `vstate import`, `vstate clone` and `vstate push --create` make a store that is not there.
- **Safety.** Nothing that is stored is run, whatever it says: a pickle is read as data, an object is shown as a
  record of its class and fields (`app.Plan(goal='x')`), a call that loading it would make in angle brackets
  (`<os.system('…')>`). Control characters are escaped.
- **For people.** Colour on a terminal only, and not with `NO_COLOR`; long lines are cut on a terminal only.
  There is no pager: `vstate log | less`.
- **For programs.** `--json` prints one JSON document, `log` one for each line. It is ASCII; times are ISO 8601
  in UTC, sizes bytes, ids 64 hex digits.
- **Exit codes.** 0; 1 after an error, which is one line on standard error; 2 for a wrong use of the command;
  130 when interrupted. `VSTATE_DEBUG=1` adds the traceback to an error.
- **Meanwhile.** A program can write to the store at the same time. It sees a HEAD that was moved when it opens
  the store again or calls `refresh()`.
"""


def page() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="vstate")
    parts = [INTRODUCTION, *_body(cli)]
    parts.append("| command | does |\n|---|---|")
    for name in cli.list_commands(context):
        first = _paragraphs(cli.commands[name])[0].rstrip(".")
        parts[-1] += f"\n| [`vstate {name}`](#vstate-{name}) | {first} |"
    parts[-1] += "\n"
    parts.append(GENERAL)
    for name in cli.list_commands(context):
        command = cli.commands[name]
        parts.append(f"## vstate {name}\n")
        parts.append(f"```\n{_usage(name, command)}\n```\n")
        parts += _body(command)
    return "\n".join(parts)


def _body(command: click.Command) -> Iterator[str]:
    for paragraph in _paragraphs(command):
        yield f"{paragraph}\n"
    options = [param for param in command.params if isinstance(param, click.Option)]
    own = [option for option in options if option.name not in ("as_json", "store", "version")]
    if own:
        yield "\n".join(["| option | |", "|---|---|", *map(_row, own)]) + "\n"
    examples, json = _epilog(command)
    yield "\n".join(["```console", *examples, "```"]) + "\n"
    if json:
        yield f"{json}\n"


def _paragraphs(command: click.Command) -> list[str]:
    text = inspect.cleandoc(command.help or "").split("\f")[0].strip()
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _usage(name: str, command: click.Command) -> str:
    """The usage line, built here since the look of click's own differs between its releases."""
    words = ["vstate", name]
    for param in command.params:
        if isinstance(param, click.Argument):
            word = param.metavar or (param.name or "").upper()
            words.append(word if param.required else f"[{word}]")
        elif param.name != "store":
            words.append(f"[{_option(param)}]")
    return " ".join(words)


def _option(param: click.Parameter) -> str:
    value = "" if getattr(param, "is_flag", False) else f" {param.metavar or (param.name or '').upper()}"
    return "/".join(param.opts) + value


def _row(option: click.Option) -> str:
    names = "`, `".join(option.opts)
    value = "" if option.is_flag else f" {option.metavar}"
    default = f" Default: {option.default:g}." if option.show_default else ""
    return f"| `{names}{value}` | {option.help}{default} |".replace("A|B", "A\\|B")


def _epilog(command: click.Command) -> tuple[list[str], str]:
    """The example lines of a command, and what it says about --json."""
    blocks = (command.epilog or "").split("\n\n")
    examples = [line.strip() for line in blocks[0].splitlines() if line.strip().startswith("$")]
    return examples, "\n\n".join(blocks[1:])


def main() -> int:
    """Write the page, or with --check compare it with what is there."""
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"{PAGE.name} is stale: run `python docs/generate_cli.py`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
