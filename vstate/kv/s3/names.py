"""The names of keys in a bucket: every object store takes them, and lists them as they are.

- The parts of a key between slashes are directories, and the tools of a bucket show them so. "=" behind the
  last part marks the end: no name is the directory of another, which some servers do not allow.
- ASCII letters, digits, "-" and "_" stand for themselves. Any other byte of the key's UTF-8 is "=" and two
  hex digits.
- "=_" is an empty part. A part of more than 200 characters is cut, with "=-" where it goes on in the next
  directory: some servers store each part as the name of a file.

`r/tags/v1.0` is named `r/tags/v1=2E0=`. Any other name is no key, and is left alone.
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
