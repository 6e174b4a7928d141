"""Signatures: the bytes a key signs, changes that break a signature, and trust."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vstate.errors import AlreadyExists, InvalidInput, NotFound, UntrustedCommit
from vstate.objects.commit import Commit, Event, Signature
from vstate.objects.ids import ObjectId
from vstate.repo.rules import signing
from vstate.repo.rules.signing import (
    PublicKey,
    SigningKey,
    Trust,
    as_public_key,
    as_signing_key,
    check,
    signer_of,
)

KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
OTHER = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))
TEXT = "ed25519:03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"

COMMIT = Commit(
    ObjectId(b"t" * 32),
    (ObjectId(b"p" * 32),),
    datetime(2026, 1, 1, tzinfo=UTC),
    "message",
    {"model": "small"},
    (Event("kind", datetime(2026, 1, 1, tzinfo=UTC), {"n": 1}, "space"),),
)


def stored(commit: Commit) -> Commit:
    """The commit as read from a store."""
    return Commit.decode(commit.oid, commit.body)


def test_a_golden_signature() -> None:
    """Ed25519 has one signature for a key and a message; this one holds in every version."""
    signed = KEY.sign(Commit(None, (), datetime(2024, 1, 1, tzinfo=UTC)))
    assert signed.signature is not None
    assert signed.signature.signer == bytes(KEY.public)
    assert signed.signature.value.hex() == (
        "9fee78c9cb41fac8f42ee0535e6a980202728f0fbd837c8f6fae807aeda89ccb"
        "e0874d0ae793d72dfe0af5ecae100f9e1d8e4eea91118c0b6dbada5a0b7efe09"
    )
    assert KEY.sign(signed) == signed


def test_a_signed_commit() -> None:
    """A signed commit is a new commit with the same content, and its signature is good once stored, too."""
    signed = KEY.sign(COMMIT)
    assert signed != COMMIT
    assert replace(signed, signature=None) == COMMIT
    for commit in (signed, stored(signed)):
        assert check(commit) == "good"
        assert signer_of(commit) == KEY.public
    assert check(COMMIT) == "unsigned"
    assert signer_of(COMMIT) is None
    assert COMMIT.signature is None


@pytest.mark.parametrize(
    "change",
    [
        {"root": None},
        {"parent_ids": ()},
        {"parent_ids": (ObjectId(b"q" * 32),)},
        {"time": COMMIT.time - timedelta(microseconds=1)},
        {"order": COMMIT.order + 1},
        {"message": "message "},
        {"info": {}},
        {"events": ()},
        {"events": (replace(COMMIT.events[0], namespace=""),)},
    ],
    ids=repr,
)
def test_every_field_is_signed(change: dict[str, Any]) -> None:
    """A commit that differs in any field cannot carry the signature of another."""
    changed = replace(KEY.sign(COMMIT), **change)
    assert check(changed) == check(stored(changed)) == "bad"
    assert signer_of(changed) is None


@pytest.mark.slow
def test_every_bit_of_a_signature_counts() -> None:
    """A flipped bit, in the signer or in the value, makes a bad signature and raises nothing."""
    signature = KEY.sign(COMMIT).signature
    assert signature is not None
    changed = [Signature(bytes(32), signature.value), Signature(b"\xff" * 32, signature.value)]
    for field in ("signer", "value"):
        raw = int.from_bytes(getattr(signature, field))
        size = len(getattr(signature, field))
        flipped = ((raw ^ 1 << bit).to_bytes(size) for bit in range(8 * size))
        changed += [signature._replace(**{field: each}) for each in flipped]
    for each in changed:
        commit = replace(COMMIT, signature=each)
        assert check(commit) == "bad"
        assert not Trust([KEY]).signed(commit)


def test_signing_again() -> None:
    """Another key's signature replaces the first; events no longer name the old commit."""
    first = stored(KEY.sign(COMMIT))
    assert first.events[0].commit == first.id
    again = OTHER.sign(first)
    assert signer_of(again) == OTHER.public
    assert again.events[0].commit is None
    assert again == OTHER.sign(COMMIT)


# Keys


def test_public_keys() -> None:
    """A public key is 32 bytes, and one line of text that parses back."""
    key = KEY.public
    assert str(key) == TEXT
    assert key.short == TEXT[:18]
    assert repr(key) == f"PublicKey({TEXT[:18]}…)"
    for other in (
        PublicKey.parse(f" {TEXT}\n"),
        PublicKey(bytes(key)),
        PublicKey.parse(TEXT.upper().replace("ED", "ed")),
    ):
        assert other == key
        assert hash(other) == hash(key)
    assert key != OTHER.public
    assert pickle.loads(pickle.dumps(key)) == key


@pytest.mark.parametrize(
    "text", ["", TEXT[8:], TEXT[:-1], TEXT + "0", "rsa" + TEXT[7:], TEXT[:-1] + "g", TEXT[:-2] + " 1"]
)
def test_malformed_public_keys(text: str, tmp_path: Path) -> None:
    """Any other text, and any other number of bytes, is refused, also in a file."""
    (tmp_path / "key.pub").write_text(text)
    makers: list[Callable[[], object]] = [
        lambda: PublicKey.parse(text),
        lambda: PublicKey(text.encode()[:31]),
        lambda: PublicKey.load(tmp_path / "key.pub"),
        lambda: PublicKey.load(tmp_path),
    ]
    for make in makers:
        with pytest.raises(InvalidInput):
            make()


@pytest.mark.parametrize("password", [None, b"pass", "päss"])
def test_a_key_is_saved_and_loaded(tmp_path: Path, password: bytes | str | None) -> None:
    """The file is PEM, readable by its owner only whatever the umask is, and never overwritten.

    A file of the public key holds its text; the error tells a secret key in its place by name.
    """
    path = tmp_path / "agent.key"
    before = os.umask(0)
    try:
        KEY.save(path, password=password)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes().startswith(
        b"-----BEGIN ENCRYPTED" if password else b"-----BEGIN PRIVATE KEY-----"
    )
    loaded = SigningKey.load(path, password=password)
    assert loaded.public == KEY.public
    assert loaded.sign(COMMIT) == KEY.sign(COMMIT)
    saved = path.read_bytes()
    with pytest.raises(AlreadyExists, match="choose another name"):
        OTHER.save(path)
    assert path.read_bytes() == saved
    with pytest.raises(InvalidInput, match="holds a secret key"):
        PublicKey.load(path)
    (tmp_path / "key.pub").write_text(f"{TEXT}\n")
    assert PublicKey.load(tmp_path / "key.pub") == KEY.public


@pytest.mark.parametrize(
    ("password", "given", "advice"),
    [
        (None, b"wrong", "give none"),
        (b"pass", None, "is encrypted: give its password"),
        (b"pass", b"wrong", "password is wrong"),
    ],
)
def test_a_key_with_another_password(
    tmp_path: Path, password: bytes | None, given: bytes | None, advice: str
) -> None:
    """The error tells a wrong password from one that is missing or too much."""
    KEY.save(tmp_path / "key", password=password)
    with pytest.raises(InvalidInput, match=advice):
        SigningKey.load(tmp_path / "key", password=given)


def test_generated_keys_differ() -> None:
    """Each generated key is new, and none is saved under an empty password."""
    assert len({SigningKey.generate().public for _ in range(5)}) == 5
    with pytest.raises(InvalidInput, match="empty password"):
        KEY.save("never-made", password=b"")
    assert not Path("never-made").exists()


@pytest.mark.skipif(os.name != "posix", reason="this system has no modes of files")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o700 | 0o007])
def test_a_key_file_that_others_can_read(tmp_path: Path, mode: int) -> None:
    """A secret file that others may read is refused, with the command to fix it."""
    path = tmp_path / "agent.key"
    KEY.save(path)
    path.chmod(mode)
    with pytest.raises(InvalidInput, match=f"chmod 600 {path}"):
        SigningKey.load(path)
    path.chmod(0o400)
    assert SigningKey.load(path).public == KEY.public


CURVE = ec.generate_private_key(ec.SECP256R1()).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)


@pytest.mark.parametrize("content", [b"", b"text", TEXT.encode(), b"-----BEGIN PRIVATE KEY-----\n", CURVE])
def test_files_that_hold_no_key(tmp_path: Path, content: bytes) -> None:
    """A file without an Ed25519 key in PEM is refused; a missing one is not found, and no directory made."""
    path = tmp_path / "file"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidInput):
        SigningKey.load(path)
    with pytest.raises(NotFound, match="vstate key new"):
        SigningKey.load(tmp_path / "absent")
    with pytest.raises(NotFound):
        PublicKey.load(tmp_path / "absent")
    with pytest.raises(InvalidInput):
        KEY.save(tmp_path / "absent" / "file")


def test_a_secret_is_not_shown() -> None:
    """Neither repr nor pickle nor copy reveals the key."""
    secret = bytes(range(32))
    assert repr(KEY) == f"SigningKey(of {KEY.public.short}…)"
    assert secret.hex() not in f"{KEY!r}{KEY}{vars(KEY)}"
    actions: list[Callable[[], object]] = [lambda: pickle.dumps(KEY), lambda: copy.deepcopy(KEY)]
    for action in actions:
        with pytest.raises(TypeError, match="save\\(\\) it once"):
            action()


def test_forms_of_a_key(tmp_path: Path) -> None:
    """A vstate key, a cryptography key, a path; for a public key also its text and its bytes."""
    raw = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    KEY.save(tmp_path / "key")
    for secret in (KEY, raw, tmp_path / "key", str(tmp_path / "key")):
        assert as_signing_key(secret).public == KEY.public
    for public in (KEY.public, TEXT, bytes(KEY.public), raw.public_key(), KEY):
        assert as_public_key(public) == KEY.public
    for wrong in (None, 7, b"x" * 31, raw.public_key()):
        with pytest.raises(InvalidInput):
            as_signing_key(wrong)  # type: ignore[arg-type]
    for wrong in (None, 7, b"x" * 31, raw, "key"):
        with pytest.raises(InvalidInput):
            as_public_key(wrong)  # type: ignore[arg-type]


# Trust


def test_trust() -> None:
    """A commit is trusted if one of the keys signed it; the key's name without a signature counts nothing."""
    signed, foreign = stored(KEY.sign(COMMIT)), stored(OTHER.sign(COMMIT))
    assert foreign.signature is not None
    claimed = stored(replace(COMMIT, signature=Signature(bytes(KEY.public), foreign.signature.value)))
    for keys in ([KEY.public], [TEXT], TEXT, KEY.public, [bytes(KEY.public)], iter([KEY])):
        trust = Trust(keys)
        for _ in range(2):
            known = [trust.signed(commit) for commit in (signed, foreign, claimed, COMMIT)]
            assert known == [True, False, False, False]
    assert Trust([KEY, OTHER]).signed(foreign)
    assert repr(Trust([TEXT])) == f"Trust({TEXT[:18]})"
    for nobody in ([], ["ed25519:00"]):
        with pytest.raises(InvalidInput):
            Trust(nobody)


@pytest.mark.parametrize(
    ("commit", "reason", "signer"),
    [
        (COMMIT, "it is not signed; `vstate verify`", None),
        (OTHER.sign(COMMIT), f"signed by {OTHER.public}", str(OTHER.public)),
        (replace(KEY.sign(COMMIT), message="changed"), "its signature is not valid", None),
    ],
)
def test_an_untrusted_commit_says_why(commit: Commit, reason: str, signer: str | None) -> None:
    """The error carries the commit, the signer if there is one, and advice."""
    trust = Trust([KEY])
    trust.require(KEY.sign(COMMIT))
    with pytest.raises(UntrustedCommit, match=reason) as caught:
        trust.require(commit)
    assert (caught.value.commit, caught.value.signer) == (commit.id, signer)


@pytest.mark.slow
def test_trust_remembers_and_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is verified once, the cache is bounded, and threads may share it."""
    calls: list[str] = []
    monkeypatch.setattr(signing, "check", lambda commit: (calls.append(commit.id), check(commit))[1])
    monkeypatch.setattr(signing, "_REMEMBERED", 10)
    trust = Trust([KEY])
    commits = [KEY.sign(replace(COMMIT, message=str(number))) for number in range(25)]
    assert all(trust.signed(commits[0]) for _ in range(5))
    assert len(calls) == 1
    assert all(trust.signed(commit) for commit in commits)
    assert len(trust._known) <= 10
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(trust.signed, commits * 40))


@pytest.mark.slow
def test_without_the_package(run_python: Callable[..., str]) -> None:
    """All that needs cryptography says how to install it; reading unsigned commits does not need it."""
    script = f"""
import sys
sys.modules["cryptography"] = None
from datetime import UTC, datetime
from vstate import Commit, InvalidInput
from vstate.objects.commit import Signature
from vstate.repo.rules.signing import *
commit = Commit(None, (), datetime(2024, 1, 1, tzinfo=UTC))
print(check(commit), signer_of(commit), Trust([{TEXT!r}]).signed(commit))
signed = Commit(None, (), datetime(2024, 1, 1, tzinfo=UTC), signature=Signature(bytes(32), bytes(64)))
load, take = lambda: SigningKey.load("x"), lambda: as_signing_key("x")
for needs in (SigningKey.generate, load, take, lambda: check(signed)):
    try:
        needs()
    except InvalidInput as error:
        print(error)
"""
    lines = run_python(script).splitlines()
    assert lines[0] == "unsigned None False"
    assert len(lines) == 5
    assert all("pip install '.[crypto]'" in line for line in lines[1:])
