"""`vstate verify`."""

from __future__ import annotations

from collections import Counter

import click

from vstate.errors import UntrustedCommit
from vstate.objects.commit import Commit
from vstate.repo.rules.signing import ALGORITHM, PublicKey, Trust, check
from vstate_cli import documents
from vstate_cli.output import Line
from vstate_cli.render import subject
from vstate_cli.session import Session, command, complete_revision

_STYLES = {"trusted": "green", "good": "", "unsigned": "dim", "bad": "bold red"}
_SIGNER_WIDTH = len(ALGORITHM) + 11


@command(
    "verify",
    examples=[
        "vstate verify",
        "vstate verify v1 -n 1 --trust agent.pub",
        "vstate verify --trust ed25519:03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8",
    ],
    json="{id, trusted, commits: [{id, signature, signer, trusted}], signers, unsigned, bad}: signature is "
    '"good", "bad" or "unsigned"; signer is the public key of a good one, else null; trusted is null without '
    "--trust; signers maps each public key to the number of commits that it signed.",
)
@click.argument("rev", default="HEAD", shell_complete=complete_revision)
@click.option(
    "--trust",
    "trusted",
    multiple=True,
    metavar="KEY",
    help="A public key, or a file that holds one; may be given several times.",
)
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="N", help="At most so many commits.")
def verify(session: Session, rev: str, trusted: tuple[str, ...], limit: int | None) -> None:
    """Show who signed the commits up to REV (HEAD).

    A good signature says that whoever has the key vouches for this commit, with all its keys and its history; not that the key is one to be trusted. With --trust, fails
    unless one of those keys signed REV itself. Without it, fails if a signature is bad.
    """
    trust = Trust([_public_key(text) for text in trusted]) if trusted else None
    target = session.repo.resolve(rev)
    signers: Counter[str] = Counter()
    words: Counter[str] = Counter()
    listed: list[documents.Document] = []
    first_bad: Commit | None = None
    for commit in session.repo.log(target, limit=limit):
        found = check(commit)
        signature = commit.signature
        signer = PublicKey(signature.signer) if signature is not None and found == "good" else None
        known = None if trust is None else trust.signed(commit)
        words[found] += 1
        if signer is not None:
            signers[str(signer)] += 1
        if found == "bad" and first_bad is None:
            first_bad = commit
        if session.json:
            who = None if signer is None else str(signer)
            listed.append({"id": commit.id, "signature": found, "signer": who, "trusted": known})
        else:
            word = "trusted" if known else found
            session.out.line(*_line(commit, word, signer))
    if session.json:
        document = {"id": target.id, "trusted": None if trust is None else trust.signed(target)}
        counts = {"signers": dict(signers), "unsigned": words["unsigned"], "bad": words["bad"]}
        documents.write(session.out, document | {"commits": listed} | counts)
    else:
        _show_counts(session, signers, words, trust)
    if trust is not None:
        trust.require(target)
    elif first_bad is not None:
        raise UntrustedCommit(first_bad.id, reason="its signature is not valid")


def _public_key(text: str) -> PublicKey:
    return PublicKey.parse(text) if text.startswith(f"{ALGORITHM}:") else PublicKey.load(text)


def _line(commit: Commit, word: str, signer: PublicKey | None) -> Line:
    return [
        (f"{word:8}", _STYLES[word]),
        f"  {signer.short if signer is not None else '':{_SIGNER_WIDTH}}  ",
        (commit.short, "yellow"),
        f" {subject(commit)}".rstrip(),
    ]


def _show_counts(session: Session, signers: Counter[str], words: Counter[str], trust: Trust | None) -> None:
    session.out.line()
    for signer, count in signers.most_common():
        known = trust is not None and PublicKey.parse(signer) in trust.keys
        session.out.line(f"{count:6,} signed by {signer}", (" (trusted)" if known else "", "green"))
    for word, text in (("unsigned", "not signed"), ("bad", "with a bad signature")):
        if words[word]:
            session.out.line((f"{words[word]:6,} {text}", _STYLES[word]))
