"""Signing: `vstate verify` checks who signed commits, and `vstate key` makes keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

from vstate.errors import UntrustedCommit
from vstate.kv.encrypted import fingerprint, generate_key, parse_key, save_key
from vstate.kv.files import read_secret
from vstate.objects.commit import Commit
from vstate.repo.rules.signing import ALGORITHM, PublicKey, SigningKey, Trust, check
from vstate_cli import commits
from vstate_cli.output import Document, Line, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import REV, Count

SIGNING = "signing"
ENCRYPTION = "encryption"

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
@click.argument("rev", default="HEAD", type=REV)
@click.option(
    "--trust",
    "trusted",
    multiple=True,
    metavar="KEY",
    help="A public key, or a file that holds one. Can be repeated.",
)
@click.option("-n", "limit", type=Count(min=0), help="Show at most N commits.")
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
    for count, commit in enumerate(session.repo.log(target, limit=limit), 1):
        verdict, signature = check(commit), commit.signature
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
            session.out.progress("checking signatures", count)
        else:
            session.out.line(*_line(commit, "trusted" if is_trusted else verdict, signer))
    document = {"id": target.id, "trusted": None if trust is None else trust.signed(target)}
    counts = {"signers": dict(signers), "unsigned": verdicts["unsigned"], "bad": verdicts["bad"]}
    session.answer(document | {"commits": listed} | counts, _count_lines(signers, verdicts, trust))
    if trust is not None:
        trust.require(target)
    elif first_bad is not None:
        raise UntrustedCommit(first_bad.id, reason="its signature is not valid")


def _public_key(text: str) -> PublicKey:
    return PublicKey.parse(text) if text.startswith(f"{ALGORITHM}:") else PublicKey.load(text)


def _line(commit: Commit, verdict: str, signer: PublicKey | None) -> Line:
    name = signer.short if signer is not None else ""
    return [(f"{verdict:8}", _STYLES[verdict]), f"  {name:{_SIGNER_WIDTH}}  ", *commits.summary(commit)]


def _count_lines(signers: Counter[str], verdicts: Counter[str], trust: Trust | None) -> Iterator[Line]:
    yield []
    for signer, number in signers.most_common():
        is_trusted = trust is not None and PublicKey.parse(signer) in trust.keys
        yield [f"{number:6,} signed by {signer}", (" (trusted)" if is_trusted else "", "green")]
    for verdict, text in (("unsigned", "not signed"), ("bad", "with a bad signature")):
        if verdicts[verdict]:
            yield [(f"{verdicts[verdict]:6,} {text}", _STYLES[verdict])]


@command(
    "key",
    examples=[
        "vstate key new agent.key",
        "vstate key show agent.key > agent.pub",
        "vstate key new store.key --kind encryption",
    ],
    json="{file, kind, public_key, fingerprint}. public_key is null for an encryption key, fingerprint for a "
    "signing key.",
)
@click.argument("action", type=click.Choice(["new", "show"]))
@click.argument("file", type=click.Path())
@click.option(
    "--kind",
    type=click.Choice([SIGNING, ENCRYPTION]),
    metavar="KIND",
    help=f"The kind of a new key: {SIGNING} or {ENCRYPTION}. Default: {SIGNING}.",
)
def key(session: Session, action: str, file: str, kind: str | None) -> None:
    """Make a key, or show the public part of a key.

    `new` makes a key file that only you can read, and overwrites no file. `show` prints the public key of a
    signing key, with which others check signatures, or the fingerprint of an encryption key, which tells
    keys apart. Neither prints a secret.
    """
    if action == "show" and kind is not None:
        raise click.UsageError("--kind is for `new`.")
    if action == "new" and kind == ENCRYPTION:
        save_key(file, generate_key())
    elif action == "new":
        SigningKey.generate().save(file)
    secret = parse_key(read_secret(file))
    public = str(SigningKey.load(file).public) if secret is None else None
    mark = None if secret is None else fingerprint(secret)
    found = SIGNING if public else ENCRYPTION
    lines: list[Line] = [[public or f"{ENCRYPTION} key, fingerprint {mark}"]]
    if action == "new" and mark:
        lines.insert(0, ["Keep a copy of it elsewhere: without the key, the encrypted data is lost."])
    if action == "new":
        lines.insert(0, [f"Made the {found} key {safe(file)}, which only you can read."])
    session.answer({"file": file, "kind": found, "public_key": public, "fingerprint": mark}, lines)
