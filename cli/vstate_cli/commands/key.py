"""`vstate key`."""

from __future__ import annotations

import click

from vstate.kv.encrypted import fingerprint, generate_key, parse_key, save_key
from vstate.kv.keyfile import read_secret
from vstate.repo.rules.signing import SigningKey
from vstate_cli.output import safe
from vstate_cli.session import Session, command

SIGNING = "signing"
ENCRYPTION = "encryption"


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
    public, mark = _make(file, kind or SIGNING) if action == "new" else _read(file)
    if session.json:
        found = SIGNING if public else ENCRYPTION
        session.out.json({"file": file, "kind": found, "public_key": public, "fingerprint": mark})
        return
    if action == "new":
        session.out.line(f"Made the {kind or SIGNING} key {safe(file)}, which only you can read.")
        if mark:
            session.out.line("Keep a copy of it elsewhere: without the key, the encrypted data is lost.")
    session.out.line(public or f"{ENCRYPTION} key, fingerprint {mark}")


def _make(file: str, kind: str) -> tuple[str | None, str | None]:
    """Make a key. Returns its public key or its fingerprint."""
    if kind == ENCRYPTION:
        secret = generate_key()
        save_key(file, secret)
        return None, fingerprint(secret)
    signing = SigningKey.generate()
    signing.save(file)
    return str(signing.public), None


def _read(file: str) -> tuple[str | None, str | None]:
    """The public key or the fingerprint of the key in a file."""
    secret = parse_key(read_secret(file))
    if secret is not None:
        return None, fingerprint(secret)
    return str(SigningKey.load(file).public), None
