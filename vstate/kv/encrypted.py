"""Encrypted: a store in front of another one, which sees neither names nor values.

The rows of the store behind, by the subkeys that BLAKE3 derives from the key:

| plain name | name there | value there |
|---|---|---|
| (none) | `encryption` | `1 ` and a check value of the key, 64 hex digits |
| `o/<64 hex digits>` | `o/<64 hex digits>` | nonce, then AES-256-GCM-SIV (RFC 8452) |
| any other | `<8 hex digits>/<hex>` | likewise |
| `room/<number>/<name>` | `room/<number>/`, then the name there of `<name>` | likewise |

**Values.** The plaintext is one zero byte and the value. The associated data is the plain name, so a row that
was changed, or moved to another name, does not open. The nonce is 12 bytes of keyed BLAKE3 over the name, its
length before it, and the value. So the same name and value give the same row: compare_and_swap and
deduplication need that. The row only tells whether the value changed. The cipher is GCM-SIV and not GCM,
because two values whose nonces collide stay safe under it.

**Objects' names** must be found again without reading the values, and must stay as short as they are. An id
is encrypted by AES-256-CBC over its two blocks, with an initialisation vector of zeros. With a constant
vector, CBC shows where two names begin with the same block. Ids are BLAKE3 hashes: two begin with the same 16
bytes by an accident of 1 in 2^128, or after somebody has searched through some 2^64 values. So the first
blocks of all names differ, and each encrypts to a block that looks random. That makes the second block's
input differ and look random too.

**Other names** are encrypted by AES-SIV (RFC 5297), which needs no nonce, with the segment's tag as
associated data. The tag is 4 bytes of keyed BLAKE3 over the name up to and including its first "/", so that a
listing of `r/heads/` reads the names under `r/` and no others.

**Rooms** keep their numbers, so that the store behind has their rows together too. Values are bound to their
room, by the whole plain name. Names are not: the same name in two rooms looks the same there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NoReturn

from blake3 import blake3

from vstate.arguments import check_installed
from vstate.errors import CorruptObject, CorruptStore, InvalidInput, UnsupportedFormat
from vstate.kv.base import OBJECT_PREFIX, ROOM_PREFIX, KVStore, Plain, check_key, check_value, split_room
from vstate.kv.files import AnyPath, read_secret, write_secret
from vstate.kv.wrapper import Rows, Translated

MARK: Final = "encryption"
"""The one plain row. It marks an encrypted store, with the version and a check value of the key."""

VERSION: Final = 1
KEY_BYTES: Final = 32

_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_PLAIN: Final = b"\0"  # in front of each plaintext: cryptography 44 does not encrypt an empty one
_FILE_BEGIN: Final = "vstate encryption key 1: "
_OBJECT: Final = re.compile(OBJECT_PREFIX + "[0-9a-f]{64}")
_OTHER: Final = re.compile(f"([0-9a-f]{{8}})/((?:[0-9a-f]{{2}}){{{_TAG_BYTES + 1},}})")
_DIGITS: Final = re.compile("[0-9a-f]{0,64}")
_ROOM_BEGIN: Final = re.compile(ROOM_PREFIX + "[0-9a-f]{0,16}")


def generate_key() -> bytes:
    """A new key."""
    return os.urandom(KEY_BYTES)


def save_key(path: AnyPath, key: bytes) -> None:
    """Write a key into a new file that only its owner may read; AlreadyExists if there is a file."""
    write_secret(path, f"{_FILE_BEGIN}{_checked(key).hex()}\n".encode())


def load_key(path: AnyPath) -> bytes:
    """The key in a file that `save_key` wrote.

    NotFound if there is no file. InvalidInput if it holds no key, or if others than its owner may read it.
    """
    key = parse_key(read_secret(path))
    if key is None:
        raise InvalidInput(
            f"{os.fspath(path)} holds no encryption key; make one with `vstate key new FILE --kind "
            "encryption`"
        )
    return key


def parse_key(data: bytes) -> bytes | None:
    """The key in the contents of a key file, None if there is none."""
    text = data.decode("ascii", "replace").strip()
    digits = text.removeprefix(_FILE_BEGIN)
    if digits == text or not re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", digits):
        return None
    return bytes.fromhex(digits)


def fingerprint(key: bytes) -> str:
    """16 hex digits that tell people which key a store needs. They do not reveal the key."""
    return _subkey(_checked(key), "check").hex()[:16]


class Encrypted(Translated):
    """`store`, in which names and values are encrypted and authenticated with `key`: 32 bytes, or the path of
    a file that holds them.

    A reader of the store without the key learns how many rows there are and how long they are, which of them
    are objects, which are in a room, and which change when. A writer without the key can remove rows, or put
    an earlier value of a name back; any other change raises CorruptObject or CorruptStore when the row is
    read. Without the key, the contents of the store are lost.

    Every promise of `store` holds here: transactions, durability, exclusion of other writers. `keys` lists
    all names that have the same first part, up to a "/", and raises CorruptStore, after all the others, if
    one was not written with this key. A name of n bytes takes 2n + 43 there. Raises InvalidInput if the store
    is not encrypted, or with another key. The first write makes an empty store an encrypted one.

    It needs the package cryptography. A Cache with a directory belongs behind it, where it holds encrypted
    rows: `Encrypted(Cache(store, directory=...), key)`.
    """

    def __init__(self, store: KVStore, key: bytes | AnyPath) -> None:
        super().__init__(store)
        self._cipher = _Cipher(load_key(key) if isinstance(key, str | os.PathLike) else _checked(key))
        self._marked = False
        self._is_marked()

    ordered = False

    keeps_packs = False

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        """Does nothing: ciphertexts have nothing in common."""

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As the store does it."""

        def encrypted() -> Mapping[str, bytes | None]:
            rows = self._rows(plan())
            # Nobody else can write now, so the mark goes with the other rows.
            if any(row is not None for row in rows.values()) and not self._is_marked():
                rows[MARK] = self._cipher.mark
            return rows

        return self._store.exclusively(encrypted)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Encrypted store is not pickled, since its key would be in the pickle: open it again where it "
            "is needed, Encrypted(store, key)"
        )

    # Rows

    def _name(self, key: str) -> str:
        name = self._cipher.name(key)
        self._is_marked()  # with another key, names that are there would look absent
        return name

    def _row(self, key: str, value: bytes) -> bytes:
        return self._cipher.seal(key, check_value(value))

    def _value(self, key: str, name: str, row: bytes) -> bytes | None:
        """The value of a row. If the row does not open, it is read again; None if it is gone by then."""
        value = self._cipher.open(key, row)
        if value is None:
            self._store.forget(name)  # perhaps only the copy in a cache is damaged
            again = self._store.get(name)
            if again is None:
                return None
            value = self._cipher.open(key, again)
        if value is None:
            reason = "it cannot be decrypted: it was changed, or moved here from another name"
            within = split_room(key)[1]
            if _OBJECT.fullmatch(within):
                raise CorruptObject(within.removeprefix(OBJECT_PREFIX), reason)
            raise CorruptStore(self.location, f"the value of {key!r}: {reason}")
        return value

    def _listed(self, prefix: str, rows: Rows) -> Iterator[tuple[str, str, bytes]]:
        """As promised. CorruptStore at the end if another key wrote a name there: that one may have had the
        prefix.
        """
        bad = ""
        places = self._cipher.places(prefix)
        if not self._is_marked():
            return
        for place in places:
            for name, row in rows(place):
                key = self._cipher.plain_name(name)
                if key is None:
                    bad = bad or (name if name != MARK else "")
                elif key.startswith(prefix):
                    yield key, name, row
        if bad:
            raise CorruptStore(
                self.location, f"it has a row {bad[:80]!r}, which was not written with this key"
            )

    # The mark

    def _is_marked(self) -> bool:
        """Whether the store is encrypted; False if it is empty. InvalidInput if its key is another, or
        none.
        """
        if self._marked:
            return True
        row = self._store.get(MARK)
        if row is None:
            if next(iter(self._store.keys()), None) is None:
                return False
            # Another process may have begun in between. It writes the mark first.
            row = self._store.get(MARK)
        if row is None:
            raise InvalidInput(
                f"the store at {self.location} is not encrypted, and not empty either: open it without "
                "Encrypted, or choose another"
            )
        self._check_mark(row)
        self._marked = True
        return True

    def _check_mark(self, row: bytes) -> None:
        version, _, check = row.decode("ascii", "replace").partition(" ")
        if not re.fullmatch("[1-9][0-9]{0,8}", version):
            raise CorruptStore(self.location, f"its row {MARK!r} is damaged")
        if int(version) > VERSION:
            raise UnsupportedFormat(f"{version} (of its encryption)", VERSION)
        if row != self._cipher.mark:
            raise InvalidInput(
                f"the store at {self.location} is encrypted with another key, of the fingerprint "
                f"{check[:16]!r}; the one given has {self._cipher.fingerprint!r}"
            )

    def _before_write(self) -> None:
        """Make sure that the store is marked, by this process or by another one with the same key."""
        while not self._is_marked():
            self._store.compare_and_swap(MARK, None, self._cipher.mark)


class _Cipher:
    """Encrypts and decrypts names and values. Threads may share it: each call has a context of its own."""

    def __init__(self, key: bytes) -> None:
        check_installed("cryptography", "an Encrypted store", "crypto")
        from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV, AESSIV

        try:
            self._values = AESGCMSIV(_subkey(key, "values"))
        except UnsupportedAlgorithm as error:
            raise InvalidInput(
                "an Encrypted store needs OpenSSL 3.2 or newer, which the wheels of cryptography bring "
                "along: pip install --upgrade cryptography"
            ) from error
        self._invalid = InvalidTag
        self._names = AESSIV(_subkey(key, "names", 2 * KEY_BYTES))
        self._ids = Cipher(algorithms.AES(_subkey(key, "ids")), modes.CBC(bytes(16)))
        self._nonces = _subkey(key, "nonces")
        self._tags = _subkey(key, "tags")
        self.mark = f"{VERSION} {_subkey(key, 'check').hex()}".encode()
        self.fingerprint = fingerprint(key)

    def seal(self, key: str, value: bytes) -> bytes:
        """The row for a value under this plain name."""
        name = key.encode()
        head = len(name).to_bytes(8, "little") + name
        nonce = blake3(head, key=self._nonces).update(value).digest(_NONCE_BYTES)
        return nonce + self._values.encrypt(nonce, _PLAIN + value, name)

    def open(self, key: str, row: bytes) -> bytes | None:
        """The value of a row under this plain name; None if the row is damaged or belongs to another name."""
        if len(row) < _NONCE_BYTES + _TAG_BYTES + len(_PLAIN):
            return None
        view = memoryview(row)
        try:
            plain = self._values.decrypt(view[:_NONCE_BYTES], view[_NONCE_BYTES:], key.encode())
        except self._invalid:
            return None
        return plain[len(_PLAIN) :]

    def name(self, key: str) -> str:
        """The name in the store of a plain one; InvalidInput if the plain one is no key."""
        room, within = split_room(check_key(key))
        if _OBJECT.fullmatch(within):
            encrypted = self._ids.encryptor().update(bytes.fromhex(within[len(OBJECT_PREFIX) :]))
            return room + OBJECT_PREFIX + encrypted.hex()
        tag = self._tag(within[: within.find("/") + 1])
        return f"{room}{tag}/{self._names.encrypt(_PLAIN + within.encode(), [tag.encode()]).hex()}"

    def plain_name(self, name: str) -> str | None:
        """The plain name of a name in the store; None if this key did not make it."""
        room, within = split_room(name)
        if _OBJECT.fullmatch(within):
            plain = self._ids.decryptor().update(bytes.fromhex(within[len(OBJECT_PREFIX) :]))
            return room + OBJECT_PREFIX + plain.hex()
        match = _OTHER.fullmatch(within)
        if match is None:
            return None
        try:
            decrypted = self._names.decrypt(bytes.fromhex(match[2]), [match[1].encode()])
        except self._invalid:
            return None
        return room + decrypted[len(_PLAIN) :].decode()

    def places(self, prefix: str) -> list[str]:
        """The prefixes in the store of all names that begin with a plain prefix, and of some others."""
        room, within = split_room(check_key(prefix))
        segment, slash, rest = within.partition("/")
        if not slash:
            return [room]
        places = [f"{room}{self._tag(segment + slash)}/"]
        if segment + slash == OBJECT_PREFIX and _DIGITS.fullmatch(rest):
            places.append(self.name(prefix) if _OBJECT.fullmatch(within) else room + OBJECT_PREFIX)
        elif _ROOM_BEGIN.fullmatch(prefix):
            places.append(prefix)
        return places

    def _tag(self, segment: str) -> str:
        return blake3(segment.encode(), key=self._tags).digest(4).hex()


def _subkey(key: bytes, purpose: str, length: int = KEY_BYTES) -> bytes:
    return blake3(key, derive_key_context=f"vstate 2026 encrypted store 1: {purpose}").digest(length)


def _checked(key: object) -> bytes:
    if not isinstance(key, bytes | bytearray | memoryview) or len(key) != KEY_BYTES:
        raise InvalidInput(
            f"an encryption key is {KEY_BYTES} bytes, or the path of a file that holds them; "
            "make one with `vstate key new FILE --kind encryption`"
        )
    return bytes(key)
