"""Paths: the name of a file in a key, and the names that no store may have written into a directory."""

from __future__ import annotations

import os
import re
import unicodedata
from functools import lru_cache
from typing import Final

from vstate.arguments import MAX_KEY_BYTES
from vstate.kv.disk.database import FILE_NAME

CONTROL: Final = ".vstate-files"
"""The directory in a workspace that says at which commit the files are."""

ASIDE: Final = ".vstate-new-"
"""The beginning of the names of files that are being written, before a number."""
is_aside: Final = re.compile(r"\.vstate-new-[0-9]+").fullmatch
"""Whether this is such a name. Who finds a file of the name and has the lock deletes the file."""

_LONGEST = 255  # bytes of one name, in all common file systems

_LONE = re.compile("[\udc80-\udcff]")
_QUOTED = re.compile("%([0-9A-F]{2})")
_OWN = {CONTROL, ".git", "git~1"}  # the last is a short name of .git on Windows


def to_name(path: str) -> str:
    """A path, as `os.fsdecode` gives it, as text: "%" and each byte that is not UTF-8 become "%XX"."""
    if path.isascii() and "%" not in path:  # nearly every path
        return path
    return _LONE.sub(lambda found: f"%{ord(found[0]) - 0xDC00:02X}", path.replace("%", "%25"))


def to_path(name: str) -> str:
    """The path of a name that `to_name` gave."""
    if "%" not in name:
        return name
    return _QUOTED.sub(lambda found: "%" if (byte := int(found[1], 16)) == 0x25 else chr(0xDC00 + byte), name)


def as_shown(path: str) -> str:
    """The path for people to read, also if it is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def refusal(name: str) -> str:
    """Why no file of this name may be written into a workspace; empty if one may."""
    path = to_path(name)
    if to_name(path) != name or "\0" in path or os.fsdecode(os.fsencode(path)) != path:
        return "it is the name of no file"
    if len(name.encode()) > MAX_KEY_BYTES:
        return "its name is too long"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "it leads out of the directory" if part == ".." else "it is the name of no file"
        if len(part) > _LONGEST // 4 and len(os.fsencode(part)) > _LONGEST:
            return "its name is too long"
        if is_own(part) or fold(part).startswith(FILE_NAME):
            return "only git or vstate writes files of this name"
    return ""


def is_own(name: str) -> bool:
    """Whether a file or directory of this name belongs to git or to vstate."""
    return (folded := fold(name)) in _OWN or folded.startswith(ASIDE)


@lru_cache(maxsize=4096)
def fold(part: str) -> str:
    """The name under which a file system that folds names might find this one."""
    if part.isascii():
        return part.casefold().rstrip(" .")
    kept = "".join(c for c in unicodedata.normalize("NFKC", part) if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", kept.casefold()).rstrip(" .")
