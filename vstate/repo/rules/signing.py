"""Signing: Ed25519 signatures of commits (RFC 8032). Needs the package cryptography."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NoReturn, Self, TypeAlias

from vstate.errors import InvalidInput, NotFound, UntrustedCommit
from vstate.extras import install
from vstate.kv.files import KEY_FILE_BYTES, read_secret, write_secret
from vstate.objects.commit import SIGNER_BYTES, Commit, Signature
from vstate.objects.ids import ObjectId

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

Path = str | os.PathLike[str]
Check = Literal["unsigned", "bad", "good"]

KeyToSign: TypeAlias = "SigningKey | Path | ed25519.Ed25519PrivateKey"
KeyToTrust: TypeAlias = "PublicKey | SigningKey | str | bytes | ed25519.Ed25519PublicKey"

ALGORITHM = "ed25519"

_REMEMBERED = 65536  # commits of a Trust, some 150 bytes each


class PublicKey(bytes):
    """A signer: the 32 bytes of an Ed25519 public key. `str()` is `ed25519:` and 64 hex digits."""

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Self:
        if len(raw) != SIGNER_BYTES:
            raise InvalidInput(f"a public key has {SIGNER_BYTES} bytes")
        return super().__new__(cls, raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The key that `text` spells, in the form of `str()`; InvalidInput if it spells none."""
        algorithm, _, digits = text.strip().partition(":")
        try:
            raw = bytes.fromhex(digits)
        except ValueError:
            raw = b""
        if algorithm != ALGORITHM or len(raw) != SIGNER_BYTES or len(digits) != 2 * SIGNER_BYTES:
            raise InvalidInput(
                f"{text[:100]!r} is no public key: give {ALGORITHM}: and 64 hex digits, as "
                "`vstate key show FILE` prints them"
            )
        return cls(raw)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The key in a text file; NotFound if there is no file, InvalidInput if it holds no public key."""
        name = os.path.expanduser(path)
        try:
            with open(name, "rb") as file:
                text = file.read(KEY_FILE_BYTES).decode("ascii", "replace")
        except FileNotFoundError:
            raise NotFound(f"no file {name}", name=name) from None
        except (OSError, ValueError) as error:
            raise InvalidInput(f"the file {name!r} cannot be read: {error}") from error
        if "PRIVATE KEY" in text:
            raise InvalidInput(f"{name} holds a secret key; `vstate key show {name}` prints its public key")
        return cls.parse(text)

    @property
    def short(self) -> str:
        """The algorithm and the first 10 digits, for people to read."""
        return f"{ALGORITHM}:{self.hex()[:10]}"

    def __str__(self) -> str:
        return f"{ALGORITHM}:{self.hex()}"

    def __repr__(self) -> str:
        return f"PublicKey({self.short}…)"


class SigningKey:
    """A secret key that signs commits. Any copy signs in its owner's name: it is never shown or pickled.

    `save` writes it to a file, and programs load it from there.
    """

    def __init__(self, key: ed25519.Ed25519PrivateKey) -> None:
        self._key = key
        self._public = PublicKey(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Self:
        """A new key."""
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path, *, password: bytes | str | None = None) -> Self:
        """The key in a PEM file (PKCS 8), decrypted with the password if it has one.

        NotFound if there is no file; InvalidInput if it holds no such key, if the password is wrong, or if
        other users may read the file.
        """
        kind = _ed25519().Ed25519PrivateKey
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        data = read_secret(path)
        name = os.path.expanduser(path)
        try:
            key = load_pem_private_key(data, password.encode() if isinstance(password, str) else password)
        except TypeError:  # a password is missing, or there is one too many
            hint = "is encrypted: give its password" if password is None else "has no password: give none"
            raise InvalidInput(f"the key in {name} {hint}") from None
        except (ValueError, UnsupportedAlgorithm) as error:
            # The library's own message is about its parser.
            maybe = ", or the password is wrong" if password is not None else ""
            raise InvalidInput(f"{name} holds no secret key in PEM (PKCS 8){maybe}") from error
        if not isinstance(key, kind):
            raise InvalidInput(f"the key in {name} is no {ALGORITHM} key; make one with `vstate key new`")
        return cls(key)

    def save(self, path: Path, *, password: bytes | str | None = None) -> None:
        """Write the key to a new file that only its owner may read, encrypted with the password, if any.

        AlreadyExists if the file exists: a key is never overwritten.
        """
        from cryptography.hazmat.primitives import serialization

        if isinstance(password, str):
            password = password.encode()
        if password is not None and not password:
            raise InvalidInput("an empty password protects nothing; give none, or a longer one")
        pem = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password),
        )
        write_secret(path, pem)

    @property
    def public(self) -> PublicKey:
        """The public key, with which others check the signatures of this key."""
        return self._public

    def sign(self, commit: Commit) -> Commit:
        """The commit with a signature by this key in place of any other.

        It is a new commit, with another id.
        """
        events = commit.events
        if any(event.commit for event in events):  # they name the stored commit, and this is a new one
            events = tuple(replace(event, commit=None) for event in events)
        unsigned = replace(commit, signature=None, events=events)
        value = self._key.sign(unsigned.signed_bytes)
        return replace(unsigned, signature=Signature(bytes(self._public), value))

    def __repr__(self) -> str:
        return f"SigningKey(of {self._public.short}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SigningKey is not pickled, since a copy of it signs in its owner's name: "
            "save() it once, and load() it where it is needed"
        )


def as_signing_key(value: KeyToSign) -> SigningKey:
    """The key itself, or the key in the file of that name; InvalidInput for anything else."""
    if isinstance(value, SigningKey):
        return value
    if isinstance(value, str | os.PathLike):
        return SigningKey.load(value)
    if isinstance(value, _ed25519().Ed25519PrivateKey):
        return SigningKey(value)
    raise InvalidInput(f"a signing key is a SigningKey or the path of its file, not {type(value).__name__}")


def as_public_key(value: KeyToTrust) -> PublicKey:
    """The public key from any of its forms, or of a signing key; InvalidInput for anything else."""
    if isinstance(value, PublicKey):
        return value
    if isinstance(value, str):
        return PublicKey.parse(value)
    if isinstance(value, bytes):
        return PublicKey(value)
    if isinstance(value, SigningKey):
        return value.public
    if isinstance(value, _ed25519().Ed25519PublicKey):
        return PublicKey(value.public_bytes_raw())
    raise InvalidInput(
        f"a public key is a PublicKey, {ALGORITHM}: and 64 hex digits, or 32 bytes, "
        f"not {type(value).__name__}"
    )


def signer_of(commit: Commit) -> PublicKey | None:
    """The key that signed the commit; None if it has no valid signature."""
    if commit.signature is None or check(commit) != "good":
        return None
    return PublicKey(commit.signature.signer)


def check(commit: Commit) -> Check:
    """Whether the commit is unsigned, or has a bad or a good signature.

    A good one need not be of a trusted key.
    """
    if commit.signature is None:
        return "unsigned"
    kind = _ed25519().Ed25519PublicKey
    from cryptography.exceptions import InvalidSignature

    try:
        kind.from_public_bytes(commit.signature.signer).verify(commit.signature.value, commit.signed_bytes)
    except (InvalidSignature, ValueError):  # ValueError: the signer is no valid key
        return "bad"
    return "good"


class Trust:
    """The trusted keys: only commits that they signed are read. Threads may share it."""

    def __init__(self, keys: Iterable[KeyToTrust] | PublicKey | str) -> None:
        if isinstance(keys, str | bytes):
            keys = [keys]
        self.keys = frozenset(as_public_key(key) for key in keys)
        if not self.keys:
            raise InvalidInput(
                "trust names no key, so no commit could be read; leave it out to trust everybody"
            )
        self._known: dict[ObjectId, bool] = {}

    def signed(self, commit: Commit) -> bool:
        """Whether the commit has a valid signature by one of the keys."""
        if commit.signature is None or commit.signature.signer not in self.keys:
            return False
        known = self._known.get(commit.oid)
        if known is None:
            known = check(commit) == "good"
            if len(self._known) >= _REMEMBERED:
                # All at once: an order of use would slow down every call, and one check takes only 70 us.
                self._known.clear()
            self._known[commit.oid] = known
        return known

    def require(self, commit: Commit) -> None:
        """Raise UntrustedCommit unless the commit is `signed`."""
        if self.signed(commit):
            return
        signer = signer_of(commit)
        reason = "it is not signed" if commit.signature is None else "its signature is not valid"
        raise UntrustedCommit(commit.id, signer=None if signer is None else str(signer), reason=reason)

    def __repr__(self) -> str:
        return f"Trust({', '.join(sorted(key.short for key in self.keys))})"


def _ed25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise InvalidInput(f"signing needs the package cryptography: {install('crypto')}") from error
    return ed25519
