"""Writes docs/cli.md, the reference of the command line, from the commands.

python docs/generate_cli.py            write it
python docs/generate_cli.py --check    exit with 1 if the page is stale
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
from vstate_cli.app import cli

PAGE = Path(__file__).with_name("cli.md")

INTRODUCTION = """\
# The command line

<!-- docs/generate_cli.py writes this page from the commands. Change the command, then run `make docs`. -->

`vstate` is the command that comes with the package. [Concepts](concepts.md) explains its words,
[sync](sync.md) the commands between stores, and [security](security.md) keys, signatures and trust.
"""

GENERAL = """\
## Rules for every command

- **The store.** The command uses the store of `-s`/`--store PATH|URL`, which stands before or after the
  name of the command. Without it, the environment variable `VSTATE_STORE` counts, then the nearest store
  here or in a parent: the directory `.vstate`, or the directory itself, as a clone is. In a URL,
  `${NAME}` stands for that variable of the environment: `-s 'redis://:${REDIS_PASSWORD}@host/0'` keeps the
  password out of the list of processes. Only `vstate import`, `vstate clone` and `vstate push --create`
  create a store.
- **Safety.** The command never runs stored code. It reads a pickle as data. It shows an object as a record
  of its class and fields (`app.Plan(goal='x')`), and a call that loading would make in angle brackets
  (`<os.system('…')>`). It escapes control characters.
- **For people.** Only on a terminal are long lines cut, and only a terminal gets colour. `FORCE_COLOR` asks
  for colour elsewhere too, and `NO_COLOR` for none. On a terminal, `log`, `show`, `diff`, `ls`, `blame` and
  `reflog` go through a pager: the command in `VSTATE_PAGER` or `PAGER`, or else `less` with `LESS=FRX`.
  `vstate --no-pager log`, and an empty variable or `cat`, turn the pager off.
- **As in git.** `-2` means `-n 2`. `-` means the branch, or the commit, that HEAD was on before.
- **For programs.** `--json` prints one JSON document; `log` prints one for each commit, on a line of its
  own, and `watch` one for each change. The document is ASCII. Times are ISO 8601 in UTC, sizes are in
  bytes, ids have 64 hex digits.
- **Exit codes.** 0 is success. 1 is an error, with one line on standard error. 2 is a wrong use of the
  command. 130 is an interruption. `VSTATE_DEBUG=1` adds the traceback to an error.
- **Beside programs.** Programs can write to the store at the same time. A program notices that HEAD moved
  when it opens the store again or calls `refresh()`.
"""


def page() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="vstate")
    parts = [INTRODUCTION, *_body(cli)]
    parts.append("| command | does |\n|---|---|")
    for name in cli.list_commands(context):
        first = _paragraphs(_command(name))[0].rstrip(".")
        parts[-1] += f"\n| [`vstate {name}`](#vstate-{name}) | {first} |"
    parts[-1] += "\n"
    parts.append(GENERAL)
    for name in cli.list_commands(context):
        command = _command(name)
        parts.append(f"## vstate {name}\n")
        parts.append(f"```\n{_usage(name, command)}\n```\n")
        parts += _body(command)
    return "\n".join(parts)


def _command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def _body(command: click.Command) -> Iterator[str]:
    for paragraph in _paragraphs(command):
        yield f"{_filled(paragraph)}\n"
    options = [param for param in command.params if isinstance(param, click.Option)]
    own = [option for option in options if option.name not in ("as_json", "store", "version")]
    if own:
        yield "\n".join(["| option | |", "|---|---|", *map(_row, own)]) + "\n"
    examples, json = _epilog(command)
    yield "\n".join(["```console", *examples, "```"]) + "\n"
    if json:
        yield f"{_filled(json)}\n"


def _filled(text: str) -> str:
    """The paragraph in lines. No line begins with a sign that Markdown would take for a list or a quote."""
    glued = re.sub(r" (?=[-+*>#|])", "\0", text)
    lines = textwrap.wrap(glued, 110, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _paragraphs(command: click.Command) -> list[str]:
    text = inspect.cleandoc(command.help or "").split("\f")[0].strip()
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _usage(name: str, command: click.Command) -> str:
    """The usage line. Click's own differs between its releases."""
    words = ["vstate", name]
    for param in command.params:
        if param.name == "store":
            continue
        word = _argument(param) if isinstance(param, click.Argument) else _option(param)
        words.append(word if param.required or word.startswith("[") else f"[{word}]")
    return " ".join(words)


def _argument(param: click.Argument) -> str:
    if isinstance(param.type, click.Choice):
        return "|".join(param.type.choices)
    word = (param.name or "").upper()
    return param.metavar or (word if param.nargs == 1 else f"{word}...")


def _option(param: click.Parameter) -> str:
    return "/".join(param.opts) + _value(param)


def _value(param: click.Parameter) -> str:
    """The word behind an option."""
    if getattr(param, "is_flag", False):
        return ""
    if isinstance(param.type, click.Choice):
        return f" {'|'.join(param.type.choices)}"
    kind = param.type.get_metavar(param, click.Context(cli))
    return f" {param.metavar or kind or (param.name or '').upper()}"


def _row(option: click.Option) -> str:
    names = "`, `".join(option.opts)
    default = f" Default: {option.default:g}." if option.show_default else ""
    value = _value(option).replace("|", "\\|")
    return f"| `{names}{value}` | {option.help}{default} |"


def _epilog(command: click.Command) -> tuple[list[str], str]:
    """The example lines of a command, and its text about --json."""
    blocks = (command.epilog or "").split("\n\n")
    examples = [line.strip() for line in blocks[0].splitlines() if line.strip().startswith("$")]
    return examples, "\n\n".join(blocks[1:])


def main() -> int:
    """Write the page; with --check, compare it with the file."""
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
