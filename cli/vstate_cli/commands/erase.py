"""`vstate erase` prints the keys and commits to erase, asks, and then removes the keys from every commit."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial

import click

from vstate.repo.rules.security import Security
from vstate_cli.commands.bisect import Condition
from vstate_cli.output import safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH, KEY
from vstate_cli.workspaces import moving_files


@command(
    "erase",
    examples=[
        "vstate erase users/ann --dry-run",
        "vstate erase 'users/ann/*' --all-branches --events",
        "vstate erase users --path ann.mail --yes",
        "vstate erase --where \"value.user == 'ann'\" --branch main",
    ],
    json="{keys, versions, bytes, events, commits, refs, signed, unsigned, kept_by, dry_run, seconds, "
    "objects, held, beyond, checked, traces}. versions counts the different erased values, and commits the "
    "commits that are made anew. refs lists the refs that move. signed counts the commits with a new "
    "signature, and unsigned those that lost theirs. kept_by lists other refs that lead to the old commits, "
    "and held the other places of the same values. beyond lists the places that erase cannot reach. checked "
    "names the files or keys that were searched for erased objects, and traces has a sentence for each find.",
)
@click.argument("keys", nargs=-1, type=KEY, metavar="[KEY|BEGINNING*]...")
@click.option("--path", help="Erase only this part of the value of KEY, written as `vstate diff` prints it.")
@click.option("--where", metavar="EXPR", help="Erase only values for which EXPR, as for bisect, is true.")
@click.option(
    "--events", is_flag=True, help="Also erase the events whose data name a KEY, or for which EXPR is true."
)
@click.option("-b", "--branch", "branches", multiple=True, type=BRANCH, help="Default: HEAD's. Repeatable.")
@click.option("--all-branches", is_flag=True, help="All branches, tags, tracking branches and reflogs.")
@click.option("--sign", metavar="FILE", help="Sign again with this key the commits that were signed.")
@click.option("--dry-run", is_flag=True, help="Print what would be erased, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. A program without a terminal needs this option.")
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
    all values. The first commit with such a key, and each commit after it, is made anew. The new commits have
    the same messages, times, info and merges, and the old ids lead to them.

    Erasing cannot be undone. The command first prints the keys and commits, and asks.

    The values stay in clones, backups and bundles. The output lists the remotes: erase the keys there too. A
    program that has the branch open must refresh before its next commit.
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
    if not (dry_run or yes):
        would = run(dry_run=True)
        session.out.aside([safe(line)] for line in would.lines())
        if would.commits:
            _confirm(session)
    every = all_branches or bool(branches)
    with nullcontext() if dry_run else moving_files(session.repo, session.out, "erase", every=every):
        report = run(dry_run=dry_run)
    session.tell(report)


def _confirm(session: Session) -> None:
    """Go on only if a person at a terminal types the word."""
    if not sys.stdin.isatty():
        raise click.UsageError("Erasing cannot be undone: give --yes where no terminal can ask.")
    session.out.flush()
    if click.prompt("Type erase to go on", err=True, default="", show_default=False) != "erase":
        raise click.Abort
