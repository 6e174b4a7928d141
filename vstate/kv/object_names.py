"""How the keys of a store are named in a bucket: in names that every object store takes, and lists as they are.

- The parts of a key between slashes are directories, so that a bucket's tools show them as such; "=" behind
  the last one marks the end. So no name is the directory of another, which some servers cannot have.
- ASCII letters, digits, "-" and "_" stand for themselves, any other byte of the key's UTF-8 as "=" and two
  hex digits.
- "=_" is an empty part. A part of more than 200 characters is cut, with "=-" where it goes on in the next
  directory: some servers keep each part as the name of a file.

`r/tags/v1.0` is named `r/tags/v1=2E0=`. What is named otherwise is no key, and is not touched.
"""

from __future__ import annotations

import re

LONGEST_NAME = 1024
"""Bytes in a name, the store's own directory included: the limit of S3, GCS and Azure."""

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


def name_of(key: str) -> str:
    """What the key is named in a bucket."""
    return _directories(key) + _END


def key_of(name: str) -> str | None:
    """The key that is named so; None if none is."""
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
    # Others may put into the bucket what only looks like a name.
    return key if name_of(key) == name else None


def beginning_of(prefix: str) -> str:
    """What the names of all keys with that prefix begin with."""
    return _directories(prefix)


def just_before(name: str) -> str | None:
    """What sorts behind every name before `name`, and before it and all that begin with it; None if nothing does.

    To list from there on. It is no name and no directory itself: whether a server that starts behind a directory
    leaves out what is in it differs.
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
        # Not in the middle of an escape: what the names with a prefix begin with must not depend on what follows.
        cut = text.find("=", _LONGEST_PART - 2, _LONGEST_PART)
        cut = _LONGEST_PART if cut < 0 else cut
        pieces.append(text[:cut])
        text = text[cut:]
    return f"{_GOES_ON}/".join([*pieces, text])
