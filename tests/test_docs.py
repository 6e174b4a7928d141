"""The docs: lines end at 110, links lead somewhere, and the programs and commands of three pages run."""

from __future__ import annotations

import code
import inspect
import json
import os
import re
import runpy
import shelve
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from ports import free_ports
from running import dull_messages
from vstate_cli.app import cli

from vstate import Live, Namespace, Snapshot, Versioned, errors, extras

TOP = Path(__file__).parent.parent
PAGES = [*sorted(TOP.glob("*.md")), *sorted((TOP / "docs").glob("*.md"))]

BLOCK = re.compile(r"^```(\w+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ vstate (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PRINTED = re.compile(r"^ *print\(.*\) +# (.+)$", re.MULTILINE)


REPL = """
import code, sys
console = code.InteractiveConsole()
console.write = sys.exit  # of an error
for line in sys.argv[1].split("\\n"):
    console.push(line)
"""


def text_of(page: str) -> str:
    return (TOP / page).read_text("utf-8")


def prose_of(page: Path) -> str:
    """The page without its blocks of code."""
    return BLOCK.sub("", page.read_text("utf-8"))


def anchors_of(page: Path) -> set[str]:
    """The anchors that a page's headings get on GitHub."""
    return {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(prose_of(page))
    }


def run(directory: Path, *command: str) -> str:
    places = [str(TOP), str(TOP / "cli"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), "COLUMNS": "160"},
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_program(directory: Path, text: str) -> list[str]:
    """The lines that a program prints. They must include the lines that its comments promise, in order."""
    (directory / "program.py").write_text(text, "utf-8")
    printed = run(directory, "-W", "error", "program.py").splitlines()
    promised = [line.rstrip() for line in PRINTED.findall(text)]
    assert [line for line in printed if line in promised] == promised, printed
    assert not dull_messages(directory, most=100)
    return printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_end_at_110(page: Path) -> None:
    """Tables and code may have longer lines."""
    long = [line for line in prose_of(page).splitlines() if len(line) > 110 and not line.startswith("|")]
    assert not long


class Pasted(code.InteractiveConsole):
    """A REPL that compiles the lines that are pasted into it, and runs nothing."""

    failed = False

    def runcode(self, code: object) -> None: ...

    def showsyntaxerror(self, *args: object, **options: object) -> None:
        self.failed = True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_can_be_pasted_into_a_repl(page: Path) -> None:
    """A REPL needs an empty line after each block of code, and takes none inside."""
    for language, text in BLOCK.findall(page.read_text("utf-8")):
        pasted = Pasted()
        for line in text.split("\n") if language == "python" else ():
            pasted.push(line)
            assert not pasted.failed, f"{line!r} in:\n{text}"
        assert not pasted.buffer, text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """A relative link names a file that is there, and a heading of it."""
    for target in LINK.findall(prose_of(page)):
        if not target.startswith("https://"):
            name, _, anchor = target.partition("#")
            linked = page.parent / name if name else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors_of(linked), target


def test_extras_are_there_and_have_no_underscore() -> None:
    """The texts name extras of pyproject.toml. A pip before 23.3 installs nothing for a name with `_`."""
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    assert not [extra for extra in extras if "_" in extra]
    files = [file for top in ("vstate", "cli", "tests", "docs") for file in (TOP / top).rglob("*.*")]
    texts = [file.read_text("utf-8") for file in files if file.suffix in (".py", ".md")]
    texts += map(text_of, PAGES)
    named = re.findall(r"(?:vstate|'\.)\[([a-z0-9_,-]+)\]", "\n".join(texts))
    assert len(named) > 20
    assert {extra for names in named for extra in names.split(",")} <= extras.keys()


def commands_of(text: str) -> list[list[str]]:
    """The words of each `$ vstate` line, up to a pipe or the like."""
    lines = re.findall(r"^ *\$ (?:\S+/)?vstate\b(.*)$", text, re.MULTILINE)
    words = [shlex.split(line, comments=True) for line in lines]
    return [list(takewhile(lambda word: word not in ("|", "&&", ">"), each)) for each in words]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page: Path) -> None:
    """Each `$ vstate` line is parsed by the command itself: its name, its options and its words."""
    for words in commands_of(page.read_text("utf-8")):
        with cli.make_context("vstate", [*words]) as context:
            name, command, rest = cli.resolve_command(context, context._protected_args + context.args)
            assert command is not None
            command.make_context(name, rest, parent=context).close()


def test_the_map_names_files_that_are_there() -> None:
    """CONTRIBUTING.md names no file that is gone, and every folder of the product."""
    page = text_of("CONTRIBUTING.md")
    for line in page.splitlines():
        paths = re.findall(r"`([\w./]+(?:\.py|/))`", line)
        for path in paths if line.startswith("|") else ():
            beside = TOP / paths[0].rpartition("/")[0] / path
            assert (TOP / path).exists() or beside.exists(), path
    folders = {
        file.parent.relative_to(TOP) for root in ("vstate", "cli") for file in (TOP / root).rglob("*.py")
    }
    assert all(f"`{folder}/" in page or f"{folder.name}/`" in page for folder in folders), folders


def test_the_list_of_modules_is_current() -> None:
    """docs/modules.md has the first line of the docstring of every module, and every module has one."""
    made = runpy.run_path(str(TOP / "docs" / "generate_modules.py"))["page"]()
    assert text_of("docs/modules.md") == made, "run `make docs`"


def public(mapping: type) -> set[str]:
    return {name for name in dir(mapping) if not name.startswith("_")}


def test_the_page_of_verbs_names_all_of_them() -> None:
    """docs/state.md has each public name of the four mappings, and says which of them have it."""
    rows = re.findall(r"^\| (`[^|]*`) \|(?: ([LNS ]*)\|)? [^|]*\|$", text_of("docs/state.md"), re.MULTILINE)
    told: dict[str, set[str]] = {"V": set(), "L": set(), "N": set(), "S": set()}
    for names, letters in rows:
        for letter in ["V", *letters.split()]:
            told[letter].update(re.findall(r"`(\w+)`", names))
    history = {name for name in public(Live) if "NotVersioned" in (getattr(Live, name).__doc__ or "")}
    writing = {
        name for name in public(Snapshot) if (getattr(Snapshot, name).__doc__ or "") == "Raise ReadOnly."
    }
    assert told["V"] == public(Versioned)
    assert told["L"] == public(Live) - history
    assert told["N"] == public(Namespace)
    assert told["S"] == public(Snapshot) - writing - {"commit"}


def test_the_page_of_verbs_has_every_option() -> None:
    """docs/state.md has a row for each argument of `Versioned`, with its default."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text_of("docs/state.md"), re.MULTILINE)
    parameters = inspect.signature(Versioned).parameters.values()
    assert rows == [(each.name, str(each.default)) for each in parameters]


@pytest.mark.slow
def test_the_programs_of_the_readme(tmp_path: Path) -> None:
    """The first prints what its comments promise, run after run; the second goes on from it, as often."""
    first, second = (text for language, text in BLOCK.findall(text_of("README.md")) if language == "python")
    assert [len(run_program(tmp_path, first)) for _ in range(3)] == [3, 3, 3]
    assert len([*Versioned(tmp_path / "agent-state").log()]) > 12
    for _ in range(2):
        assert len(run_program(tmp_path, first + second)) == 3
    with Versioned(tmp_path / "agent-state") as state:
        assert "facts" not in state
        assert [(run.id, run.steps) for run in state.runs()] == [("order-17", 1)]


def test_what_is_advised_can_be_installed() -> None:
    """Until vstate is released, no page and no message tells people to install its name from an index."""
    assert not extras.RELEASED, "the pages install from a clone: change them, and turn this test"
    texts = [
        *PAGES,
        *(TOP / "docs").rglob("*.py"),
        *(TOP / "vstate").rglob("*.py"),
        *(TOP / "cli").rglob("*.py"),
    ]
    assert len(texts) > 300
    for page in texts:
        if page.name != "extras.py":
            for advice in re.findall(r"pip install[^`\n]*", page.read_text("utf-8")):
                assert not re.search(r"(?<![./\w-])vstate\b(?!/)", advice), f"{page}: {advice}"
    assert extras.install("redis") == "pip install '.[redis]' in a clone of vstate"


@pytest.mark.slow
def test_the_programs_and_commands_of_the_tutorial(tmp_path: Path) -> None:
    """Each block runs where the page has it; the interactive blocks are one program."""
    (_, agent), *others = [block for block in BLOCK.findall(text_of("docs/tutorial.md")) if block[0]]
    for _ in range(2):
        assert "goal='learn vstate'" in "".join(run_program(tmp_path, agent))
    session = ["import subprocess"]
    for language, text in others:
        if language == "python":
            session.append(text)
        for command in COMMAND.findall(text) if language == "console" else ():
            line = f"{sys.executable} -m vstate_cli {command[0]}"
            session.append(f"subprocess.run({line!r}, shell=True, check=True)")
    printed = run(tmp_path, "-c", REPL, "\n".join(session))
    assert "pay 50\nwork(step='break')\n" in printed
    assert "The first bad commit is" in printed
    assert not dull_messages(tmp_path)


def run_commands(directory: Path, page: str) -> None:
    """Run the lines of a page's console blocks, but for those that name a server or start one."""
    lines = [f'vstate() {{ {shlex.quote(sys.executable)} -m vstate_cli "$@"; }}']
    for language, text in BLOCK.findall(text_of(f"docs/{page}.md")):
        found = re.findall(r"^\$ (.+)$", text, re.MULTILINE) if language == "console" else []
        lines += [line for line in found if "://" not in line and not re.search(r"\b(view|pip)\b", line)]
    run(directory, "-c", "import os, sys; os.execvp('bash', ['bash', '-ec', sys.argv[1]])", "\n".join(lines))


def files_to_move_in(directory: Path) -> None:
    with shelve.open(str(directory / "cache.db")) as old:
        old["plan"] = ["read"]
    (directory / "settings").mkdir()
    (directory / "settings" / "a.json").write_text("{}")


def copied_files(directory: Path) -> None:
    shutil.copytree(directory / "agent", directory / "copy")


BEFORE_COMMANDS = {"moving-in": files_to_move_in, "backup": copied_files}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        *("resolve-a-conflict", "keep-it-small", "moving-in", "backup", "share-a-store", "side-effects"),
        *("erase-a-person", "files", "fsspec"),
    ],
)
def test_the_pages_for_one_task(page: str, tmp_path: Path) -> None:
    """The blocks of a page are one program, which prints the promised lines; then its commands run."""
    blocks = [text for language, text in BLOCK.findall(text_of(f"docs/{page}.md")) if language == "python"]
    program = "\n".join(blocks)
    assert len(run_program(tmp_path, program)) == len(PRINTED.findall(program))
    BEFORE_COMMANDS.get(page, lambda _: None)(tmp_path)
    run_commands(tmp_path, page)


@pytest.mark.slow
def test_the_programs_of_the_concepts(tmp_path: Path) -> None:
    """The blocks are one program on one state, but for the watches, which never end."""
    blocks = [text for language, text in BLOCK.findall(text_of("docs/concepts.md")) if language == "python"]
    program = ["import vstate; state = vstate.Versioned('store'); state['code'] = 1; state.commit()"]
    program += [re.sub(r"^ +async for .*", "", text, flags=re.M) for text in blocks if text[:4] != "for "]
    assert run(tmp_path, "-W", "error", "-c", "\n".join(program)).endswith("\ngreet\n")


@pytest.mark.slow
def test_the_web_service(tmp_path: Path) -> None:
    """Two workers serve requests of one user at once, none is lost, also when the service is killed."""
    (text,) = (text for kind, text in BLOCK.findall(text_of("docs/web-service.md")) if kind == "python")
    (tmp_path / "service.py").write_text(text, "utf-8")
    (port,) = free_ports(1)

    def ask(path: str, said: str | None = None, method: str | None = None) -> Any:
        data = None if said is None else json.dumps({"text": said}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    @contextmanager
    def serving() -> Iterator[None]:
        command = [sys.executable, "-m", "uvicorn", "service:app", "--port", str(port), "--workers", "2"]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(TOP)}, start_new_session=True
        )
        try:
            for _ in range(600):
                with suppress(OSError):
                    ask("/nobody/messages")
                    break
                time.sleep(0.1)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    with serving(), ThreadPoolExecutor(8) as pool:
        counts = [*pool.map(lambda _: ask("/ann/messages", "hello"), range(20))]
        assert sorted(counts) == [*range(1, 21)]
        assert ask("/ben/messages", "hi") == 1
    with serving():
        assert len(ask("/ann/messages")) == 20
        ask("/ann", method="DELETE")
        assert ask("/ann/messages") == []
        assert ask("/ann/messages", "again") == 1
        run_commands(tmp_path, "web-service")


OLD_PLAN = """
from dataclasses import dataclass

@dataclass
class Plan:
    title: str
"""
WRITE_PLAN = """
from vstate import Versioned

with Versioned("store") as state:
    state["plan"] = Plan("greet")
    state.commit("a plan")
"""
EDIT_PLAN = """
from vstate import Versioned

state = Versioned("store")
assert (state["plan"].goal, state["plan"].tags) == ("greet", [])
state["plan"].tags.append("short")
state.commit("a tag")
"""


@pytest.mark.slow
def test_the_programs_of_the_page_about_classes(tmp_path: Path) -> None:
    """A program with the classes and calls of the page reads a plan that was stored with other fields."""
    run_program(tmp_path, OLD_PLAN + WRITE_PLAN)
    page = text_of("docs/changing-classes.md")
    plan, upgrade, renamed, record, named = (text for kind, text in BLOCK.findall(page) if kind == "python")
    program = ["from dataclasses import dataclass, field", plan, upgrade, renamed, EDIT_PLAN, record]
    assert len(run_program(tmp_path, "\n".join(program))) == 1
    run_program(
        tmp_path, named + "def limits(): return LIMITS\n" + WRITE_PLAN.replace('Plan("greet")', "limits")
    )
    assert run_program(tmp_path, "import vstate; print(vstate.Versioned('store')['plan']())") == [
        "{'steps': 5}"
    ]


def test_every_error_has_its_row() -> None:
    """docs/troubleshooting.md says of each error class what it means, and what to do."""
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", text_of("docs/troubleshooting.md"), re.MULTILINE)
    assert sorted(rows) == sorted(errors.__all__)


def without_chance(output: str) -> str:
    """The output without the parts that differ in each run: ids, times, sizes of pickles, trailing spaces."""
    output = re.sub(r"\b[0-9a-f]{10}\b", "ID", output)
    output = re.sub(r"\b\d+ B\b", "SIZE", output)
    output = re.sub(r"datetime\.datetime\([^)]*\)", "TIME", output)
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("page", ["agents", "agentscope", "agentscope-runtime", "agenticaiframework"])
def test_the_examples_for_agents(page: str, tmp_path: Path) -> None:
    """The programs of a page print the promised lines, and the commands print the same as on the page."""
    blocks = BLOCK.findall(text_of(f"docs/{page}.md"))
    assert any(language == "python" for language, _ in blocks)
    for language, text in blocks:
        if language == "python":
            run_program(tmp_path, text)
            continue
        commands = COMMAND.findall(text)
        assert commands
        for command, shown in commands:
            output = run(tmp_path, "-m", "vstate_cli", *command.split())
            assert without_chance(output) == without_chance(shown), output


@pytest.mark.slow
def test_the_store_of_the_page_about_stores_of_ones_own(tmp_path: Path) -> None:
    """Its tests pass; the program, the command and the stores in front find it by its URL."""
    page = text_of("docs/custom-store.md")
    files = ["vstate_table.py", "test_vstate_table.py", "program.py"]
    for name, text in zip(
        files, [text for kind, text in BLOCK.findall(page) if kind == "python"], strict=True
    ):
        (tmp_path / name).write_text(text, "utf-8")
    passed = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_vstate_table.py")
    assert " passed" in passed.splitlines()[-1]
    project = next(tomllib.loads(text) for kind, text in BLOCK.findall(page) if text.startswith("[project"))
    [(group, schemes)] = project["project"]["entry-points"].items()
    info = tmp_path / "vstate_table-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vstate-table\nVersion: 1.0\n", "utf-8")
    entry_points = "\n".join(f"{scheme} = {function}" for scheme, function in schemes.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry_points}\n", "utf-8")
    run(tmp_path, "-W", "error", "program.py")
    shown = [run(tmp_path, "-m", "vstate_cli", *command.split()) for command, _ in COMMAND.findall(page)]
    assert "first words" in shown[0]
    assert "greet" in shown[1]
    assert "first words" in run(tmp_path, "-m", "vstate_cli", "-s", "cache:table:rows.db", "log")
