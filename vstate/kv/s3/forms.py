"""The forms of keys and values in a bucket. Every object store takes the names, and lists them as they are.

- The parts of a key between slashes are directories, and the tools of a bucket show them so. "=" behind the
  last part marks the end: no name is the directory of another, which some servers do not allow.
- ASCII letters, digits, "-" and "_" stand for themselves. Any other byte of the key's UTF-8 is "=" and two
  hex digits.
- "=_" is an empty part. A part of more than 200 characters is cut, with "=-" where it goes on in the next
  directory: some servers store each part as the name of a file.

`r/tags/v1.0` is named `r/tags/v1=2E0=`. Any other name is no key, and is left alone.

Values:

- An object of 8 bytes or more is stored as `v` and the object: the same bytes, from every writer.
- Any other value is stored as `s`, 8 random bytes, and the value. By these bytes a writer whose answer was
  lost tells its own write from another's write of the same value; and no ETag, which may be a hash, comes up
  twice.
- 8 random bytes alone stand for a key that a swap deleted. So 8 bytes or fewer are never a value, also where
  only the size is known, as in a listing.
"""

from __future__ import annotations

import os
import re

from vstate.kv.base import is_object

LONGEST_NAME = 1024
"""Bytes in a name, the store's own directory included: the limit of S3, GCS and Azure."""

NONCE_BYTES = 8

_LONGEST_PART = 200
_END = "="
_GOES_ON = "=-"
_EMPTY = "=_"
_ALPHABET = "-0123456789=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_ESCAPED = [
    chr(byte) if byte < 128 and chr(byte) in _ALPHABET and chr(byte) != "=" else f"={byte:02X}"
    for byte in range(256)
]
_PLAIN = re.compile(rf"[\w-]{{1,{_LONGEST_PART}}}(/[\w-]{{1,{_LONGEST_PART}}})*", re.ASCII)
_ESCAPE = re.compile(rb"=([0-9A-F]{2})")
_VALUE = b"v"
_MARKED = b"s"


def name_of(key: str) -> str:
    """The name of the key in a bucket."""
    return _directories(key) + _END


def key_of(name: str) -> str | None:
    """The key that has this name. None if no key has."""
    if not name.endswith(_END):
        return None
    key = name[:-1]
    if _PLAIN.fullmatch(key):
        return key
    parts = [""]
    for part in key.split("/"):
        if part.endswith(_GOES_ON):
            parts[-1] += part[:-2]
        else:
            parts[-1] += "" if part == _EMPTY else part
            parts.append("")
    raw = _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), "/".join(parts[:-1]).encode())
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        return None
    # Another program may have put an object there whose name only looks like one.
    return key if name_of(key) == name else None


def beginning_of(prefix: str) -> str:
    """The beginning of the names of all keys with that prefix."""
    return _directories(prefix)


def just_before(name: str) -> str | None:
    """A text to list from: it sorts after all names before `name`, and before all that begin with it.

    None if there is no such text. The text is no name and no directory: servers differ in whether a listing
    that starts behind a directory leaves out its contents.
    """
    name = name.rstrip("-")
    if not name or name.endswith("/"):
        return None
    return name[:-1] + _ALPHABET[_ALPHABET.index(name[-1]) - 1] + "~"


def _directories(key: str) -> str:
    if _PLAIN.fullmatch(key):
        return key
    *directories, last = key.split("/")
    return "".join(f"{_part(part) or _EMPTY}/" for part in directories) + _part(last)


def _part(part: str) -> str:
    text = "".join([_ESCAPED[byte] for byte in part.encode()])
    pieces = []
    while len(text) > _LONGEST_PART:
        # Not inside an escape: the beginning of the names with a prefix must not depend on the rest.
        cut = text.find("=", _LONGEST_PART - 2, _LONGEST_PART)
        cut = _LONGEST_PART if cut < 0 else cut
        pieces.append(text[:cut])
        text = text[cut:]
    return f"{_GOES_ON}/".join([*pieces, text])


def frame(key: str, value: bytes) -> bytes:
    """The stored bytes for a key's value."""
    return _VALUE + value if is_object(key) and len(value) >= NONCE_BYTES else frame_of_swap(value)


def frame_of_swap(value: bytes | None) -> bytes:
    """The stored bytes for a swapped value, or in the place of a deleted one: different bytes each time."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce if value is None else _MARKED + nonce + value


def is_value(size: int | None) -> bool:
    """Whether a value is stored in so many bytes. None: there is no object at all."""
    return size is not None and size > NONCE_BYTES


def value_of(stored: bytes) -> bytes | None:
    """The value in the stored bytes, None for a deleted key. ValueError if they are neither."""
    if not is_value(len(stored)):
        return None
    if stored.startswith(_VALUE):
        return stored[1:]
    if stored.startswith(_MARKED):
        return stored[1 + NONCE_BYTES :]
    raise ValueError("no value of vstate")
