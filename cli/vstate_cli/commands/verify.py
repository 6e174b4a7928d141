"""`vstate verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

from vstate.errors import UntrustedCommit
from vstate.objects.commit import Commit
from vstate.repo.rules.signing import ALGORITHM, PublicKey, Trust, check
from vstate_cli import commits
from vstate_cli.output import Document, Line
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision

_STYLES = {"trusted": "green", "good": "", "unsigned": "dim", "bad": "bold red"}
_SIGNER_WIDTH = len(ALGORITHM) + 11


@command(
    "verify",
    examples=[
        "vstate verify",
        "vstate verify v1 -n 1 --trust agent.pub",
        "vstate verify --trust ed25519:03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8",
    ],
    json="{id, trusted, commits: [{id, signature, signer, trusted}], signers, unsigned, bad}. signature "
    'is "good", "bad" or "unsigned"; signer is the public key of a good signature, else null; trusted is '
    "null without --trust; signers maps each public key to the number of commits it signed.",
)
@click.argument("rev", default="HEAD", shell_complete=complete_revision)
@click.option(
    "--trust",
    "trusted",
    multiple=True,
    metavar="KEY",
    help="A public key, or a file that holds one. Can be repeated.",
)
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="N", help="Show at most N commits.")
def verify(session: Session, rev: str, trusted: tuple[str, ...], limit: int | None) -> None:
    """Show who signed the commits up to REV.

    A good signature proves that the owner of the key vouches for the commit, its keys and its history. It
    does not prove that you can trust the key. With --trust, the command fails unless one of those keys
    signed REV itself. Without --trust, it fails if a signature is bad. REV defaults to HEAD.
    """
    trust = Trust([_public_key(text) for text in trusted]) if trusted else None
    target = session.repo.resolve(rev)
    signers: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    listed: list[Document] = []
    first_bad: Commit | None = None
    for commit in _commits(session, target, limit):
        verdict = check(commit)
        signature = commit.signature
        signer = PublicKey(signature.signer) if signature is not None and verdict == "good" else None
        is_trusted = None if trust is None else trust.signed(commit)
        verdicts[verdict] += 1
        if signer is not None:
            signers[str(signer)] += 1
        if verdict == "bad" and first_bad is None:
            first_bad = commit
        if session.json:
            name = None if signer is None else str(signer)
            listed.append({"id": commit.id, "signature": verdict, "signer": name, "trusted": is_trusted})
        else:
            session.out.line(*_line(commit, "trusted" if is_trusted else verdict, signer))
    if session.json:
        document = {"id": target.id, "trusted": None if trust is None else trust.signed(target)}
        counts = {"signers": dict(signers), "unsigned": verdicts["unsigned"], "bad": verdicts["bad"]}
        session.out.json(document | {"commits": listed} | counts)
    else:
        _show_counts(session, signers, verdicts, trust)
    if trust is not None:
        trust.require(target)
    elif first_bad is not None:
        raise UntrustedCommit(first_bad.id, reason="its signature is not valid")


def _commits(session: Session, target: Commit, limit: int | None) -> Iterator[Commit]:
    """The commits, with a progress bar if no lines show the progress."""
    log = session.repo.log(target, limit=limit)
    if not session.json:
        yield from log
        return
    with ProgressBar() as bar:
        for count, commit in enumerate(log, 1):
            bar("checking signatures", count)
            yield commit


def _public_key(text: str) -> PublicKey:
    return PublicKey.parse(text) if text.startswith(f"{ALGORITHM}:") else PublicKey.load(text)


def _line(commit: Commit, verdict: str, signer: PublicKey | None) -> Line:
    return [
        (f"{verdict:8}", _STYLES[verdict]),
        f"  {signer.short if signer is not None else '':{_SIGNER_WIDTH}}  ",
        *commits.summary(commit),
    ]


def _show_counts(
    session: Session, signers: Counter[str], verdicts: Counter[str], trust: Trust | None
) -> None:
    session.out.line()
    for signer, number in signers.most_common():
        is_trusted = trust is not None and PublicKey.parse(signer) in trust.keys
        session.out.line(f"{number:6,} signed by {signer}", (" (trusted)" if is_trusted else "", "green"))
    for verdict, text in (("unsigned", "not signed"), ("bad", "with a bad signature")):
        if verdicts[verdict]:
            session.out.line((f"{verdicts[verdict]:6,} {text}", _STYLES[verdict]))
