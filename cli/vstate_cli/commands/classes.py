"""Classes: `vstate check-classes` lists those that stored values need."""

from __future__ import annotations

import os
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from symtable import symtable

import click

from vstate.plural import counted
from vstate.repo.search.classes import Named
from vstate.values.builders import python_of
from vstate_cli.output import Document, Line, Output, padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import REV

FOUND, UNSURE, MISSING, BY_VALUE = "found", "unsure", "missing", "by value"
_WIDEST_NAME = 50
_STAR = re.compile(r"^[ \t]*from\b.*\bimport[ \t(]*\*", re.MULTILINE)


@command(
    "check-classes",
    paged=True,
    examples=["vstate check-classes", "vstate check-classes --all", "vstate check-classes main~100"],
    json="a list of {name, here, python, first, last, commits, keys}. here is found, unsure, missing or by "
    "value; python is the version that compiled a class stored by value, else null; first and last are ids; "
    "keys are the keys at REV.",
)
@click.argument("rev", default="HEAD", type=REV)
@click.option("--all", "everything", is_flag=True, help="List classes of the standard library too.")
def check_classes(session: Session, rev: str, everything: bool) -> None:
    """List the classes that stored values need.

    List the classes and functions that values name, at REV and in the commits before it: the first and the
    last commit that stored each, and in how many keys at REV it is. It is `found` if a module here defines
    the name, `missing` if none does, and `unsure` if only an import of the module could tell. A class that
    is stored `by value` needs no module, but the version of Python that is shown. The search looks at the
    source of modules below this directory and on Python's path; it imports nothing and runs nothing.
    """
    progress = partial(session.out.progress, "reading commits")
    found = session.repo.find_named(rev, progress=progress)
    if not everything:
        found = [named for named in found if named.name.partition(".")[0] not in _OURS]
    session.answer(map(_document, found), _lines(found, session.out))


_OURS = sys.stdlib_module_names - {"__main__"} | {"cloudpickle", "vstate"}


def _document(named: Named) -> Document:
    return {
        "name": named.name,
        "here": _here(named),
        "python": python_of(named.magic) if named.magic else None,
        "first": named.first.id,
        "last": named.last.id,
        "commits": named.commits,
        "keys": list(named.keys),
    }


def _lines(found: list[Named], out: Output) -> Iterator[Line]:
    width = min(max((len(safe(named.name)) for named in found), default=0), _WIDEST_NAME)
    for named in found:
        here = _here(named)
        colour = {FOUND: "green", MISSING: "red"}.get(here, "yellow")
        keys = counted(len(named.keys), "key")
        python = f", {python_of(named.magic)}" if named.magic else ""
        yield [
            (padded(here, len(BY_VALUE)), colour), "  ", padded(safe(named.name), width), "  ",
            (named.first.short, "yellow"), "..", (named.last.short, "yellow"),
            f"  {out.moment(named.first.time)} to {out.moment(named.last.time)}  {keys}{python}",
        ]  # fmt: skip


def _here(named: Named) -> str:
    if named.magic or named.name.startswith("__main__."):
        return BY_VALUE
    spec, rest = _module(named.name.split("."))
    if spec is None:
        return MISSING
    if not rest:
        return FOUND
    if spec.origin is None or not spec.origin.endswith(".py"):
        return UNSURE
    return _defined(Path(spec.origin), rest[0])


def _module(parts: list[str]) -> tuple[ModuleSpec | None, list[str]]:
    """The innermost module that the name leads through, and the rest of the name. Imports nothing."""
    if parts[0] in sys.builtin_module_names:
        return ModuleSpec(parts[0], None), parts[1:]
    spec, path = None, [os.getcwd(), *sys.path]
    for number in range(len(parts)):
        inner = PathFinder.find_spec(".".join(parts[: number + 1]), path)
        if inner is None:
            return spec, parts[number:]
        spec, path = inner, list(inner.submodule_search_locations or ())
        if not path:
            return spec, parts[number + 1 :]
    return spec, []


def _defined(source: Path, name: str) -> str:
    """Whether the source of a module binds the name at its top."""
    try:
        with tokenize.open(source) as file:
            text = file.read()
        names = {each.get_name(): each for each in symtable(text, str(source), "exec").get_symbols()}
    except (OSError, SyntaxError, ValueError):
        return UNSURE
    if name in names and (names[name].is_assigned() or names[name].is_imported()):
        return FOUND
    return UNSURE if "__getattr__" in names or _STAR.search(text) else MISSING
