"""Transcripts: rows of commands, each with the output that it must have.

    branch new v1 -> Created branch new at <id> start
    branch ? [*].name -> ["main", "new"]
    branch -> * main <id> more
        / new <id> start
    branch -d main -> [1] vstate: HEAD is on branch 'main'...
    >>> commit(store, a=1)

A row `WORDS -> OUTPUT` runs `vstate WORDS`; without an arrow, its output does not matter. The lines of the
output stand in one line with ` / ` between them, and white space counts as one space. `-` is no output, `...`
any text, and `[1]` an exit code other than 0. Behind `?` stands a JMESPath expression for the JSON. Ids,
times, sizes and seconds are <id> or <ID>, <time>, <size> and <s>. A row `>>> CODE` is Python with the given
names; a name in capitals stands in commands and outputs for its value, as STORE for a path. A row that begins
with `/`, `->` or `...` goes on with the row above.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jmespath

if TYPE_CHECKING:
    from conftest import Command

_NAMES = (
    (r"\b[0-9a-f]{64}\b", "<ID>"),
    (r"\b[0-9a-f]{10}\b", "<id>"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", "<time>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00", "<TIME>"),
    (r"\d\d:\d\d:\d\d\.\d{3}", "<clock>"),
    (r"\b\d[\d.,]* (B|kB|MB|GB)(?!\w)", "<size>"),
    (r"\b\d+\.\d+ s\b", "<s>"),
)


def check(vstate: Command, rows: str, /, **names: Any) -> None:
    """Run the rows, and fail at the first output that differs."""
    texts = {
        name: str(value) for name, value in names.items() if name.isupper() and isinstance(value, str | Path)
    }
    for row in re.sub(r"\n\s*(/|->|\.\.\.)", r" \1", rows).splitlines():
        if (row := row.strip()).startswith(">>> "):
            exec(row[4:], names)
        elif row:
            command, arrow, expected = row.partition(" -> ")
            found = run(vstate, command, texts)
            pattern = ".*".join(map(re.escape, expected.split("..."))) if expected != "-" else ""
            assert re.fullmatch(pattern, found) if arrow else not found.startswith("["), f"{row}\n{found}"


def run(vstate: Command, command: str, texts: dict[str, str]) -> str:
    """The output of a command as a row has it."""
    command, mark, query = command.partition(" ? ")
    for name, text in texts.items():
        command = command.replace(name, text)
    words = shlex.split(command)
    result = vstate.run(*words, *(["--json"] if mark else []))
    output = result.output
    if mark:
        lines = [json.loads(line) for line in result.stdout.splitlines()] if words[0] == "log" else None
        document = json.loads(result.stdout) if lines is None else lines
        output = json.dumps(jmespath.search(query, document)) + "\n" + result.stderr
    for name, text in sorted(texts.items(), key=lambda item: -len(item[1])):
        output = output.replace(text, name)
    return (f"[{result.exit_code}] " if result.exit_code else "") + plain(output)


def plain(output: str) -> str:
    """An output in one line, with names for what differs from run to run."""
    for pattern, name in _NAMES:
        output = re.sub(pattern, name, output)
    return " / ".join(" ".join(line.split()) for line in output.splitlines() if line.strip())
