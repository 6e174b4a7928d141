"""`vstate erase` removes keys from every commit, once the person has read what goes and confirmed it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from functools import partial

import click

from vstate.repo.rules.security import Security
from vstate.repo.upkeep.erasing import EraseReport
from vstate_cli.commands.bisect import Condition
from vstate_cli.output import Line, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH, KEY

_CONFIRMED = "erase"


@command(
    "erase",
    moves=True,
    examples=[
        "vstate erase users/ann --dry-run",
        "vstate erase 'users/ann/*' --all-branches --events",
        "vstate erase users --path ann.mail --yes",
        "vstate erase --where \"value.user == 'ann'\" --branch main",
    ],
    json="{keys, versions, bytes, events, commits, refs, signed, unsigned, kept_by, dry_run, seconds, "
    "objects, held, beyond, checked, traces}. versions counts the different values that go, commits those "
    "that are made anew; refs moved; signed and unsigned count commits that got, or lost, a signature; "
    "kept_by names other refs that keep the old commits, and held other places of the same values; beyond "
    "lists what erase cannot reach; checked says where it looked for the objects, and traces what it found.",
)
@click.argument("keys", nargs=-1, type=KEY, metavar="[KEY|BEGINNING*]...")
@click.option("--path", help="Erase only this part of the value of KEY, written as `vstate diff` prints it.")
@click.option("--where", metavar="EXPR", help="Erase only values for which EXPR, as for bisect, is true.")
@click.option(
    "--events", is_flag=True, help="Erase events too whose data name a KEY, or for which EXPR is true."
)
@click.option("-b", "--branch", "branches", multiple=True, type=BRANCH, help="Default: HEAD's. Repeatable.")
@click.option("--all-branches", is_flag=True, help="All branches, tags, tracking branches and reflogs.")
@click.option("--sign", metavar="FILE", help="Sign again with this key the commits that were signed.")
@click.option("--dry-run", is_flag=True, help="Print what would be erased, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Without a terminal this is needed.")
def erase(
    session: Session,
    keys: tuple[str, ...],
    path: str | None,
    where: str | None,
    events: bool,
    branches: tuple[str, ...],
    all_branches: bool,
    sign: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove keys from every commit, so that no byte of them stays in the store.

    A KEY that ends in * stands for all keys that begin so. With --where and without a KEY, EXPR chooses among
    all values. Each commit from the first that had one is made anew, with the same message, time, info and
    merges; old ids still name the new commits. This cannot be undone: it first prints what goes, and asks.

    Clones, backups and bundles keep what they have: the output lists the remotes. A program that is at work
    on the branch must refresh before its next commit.
    """
    if not (keys or where):
        raise click.UsageError("Name the keys to erase, or choose values with --where.")
    if sign is not None:
        session.repo.security = Security(sign=sign)
    run = partial(
        session.repo.erase,
        *keys,
        branch=branches or None,
        all_branches=all_branches,
        path=path,
        where=Condition(where).is_true if where else None,
        events=events,
        progress=session.out.progress,
    )
    if dry_run or not yes:
        plan = run(dry_run=True)
        if dry_run:
            session.answer(dataclasses.asdict(plan), _lines(plan))
            return
        session.out.aside(_lines(plan))
        _confirm(session)
    report = run()
    session.answer(dataclasses.asdict(report), _lines(report))


def _confirm(session: Session) -> None:
    """Go on only if a person at a terminal types the word."""
    if not sys.stdin.isatty():
        raise click.UsageError("Erasing cannot be undone: give --yes where no terminal can ask.")
    session.out.flush()
    if click.prompt(f"Type {_CONFIRMED} to go on", err=True, default="", show_default=False) != _CONFIRMED:
        raise click.Abort


def _lines(report: EraseReport) -> Iterator[Line]:
    return ([safe(line)] for line in report.lines())
