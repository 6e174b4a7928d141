"""Names: what the files of keys are called."""

from __future__ import annotations

import os
import unicodedata
from typing import Final

from blake3 import blake3

_LONGEST_PART: Final = 200  # bytes; file systems take 255
_LONGEST_PATH: Final = 1000
_KEPT_OF_LONG: Final = 120


class Names:
    """The paths of files, by key: no two keys have the same, and none leads out of the directory.

    The parts of a key between "/" are directories, and the last one is the file. Letters, digits, "_" and "-" stand
    for themselves, anything else is written as "%" and two digits for each byte of UTF-8, a part without characters
    as "%". A dot stands for itself in the name of a file, though not in front: so no directory has the name of a
    file. What is too long is cut off, and goes on with "%~" and a hash of the key.
    """

    def __init__(self, *, ignores_case: bool) -> None:
        self._ignores_case = ignores_case

    def path(self, key: str, suffix: str) -> str:
        *directories, name = key.split("/")
        parts = [*(self._part(part, dots=False) for part in directories), self._part(name, dots=True)]
        if sum(len(part.encode()) + 1 for part in parts) > _LONGEST_PATH:
            parts = [_hash(key)]
        return os.path.join(*parts) + suffix

    def _part(self, part: str, *, dots: bool) -> str:
        # Some file systems take two ways to write an accent for one.
        wide = not self._ignores_case and unicodedata.is_normalized("NFC", part)
        escaped = "".join(
            char if self._is_kept(char, wide) or (dots and char == "." and at) else _escape(char)
            for at, char in enumerate(part)
        )
        if len(escaped.encode()) > _LONGEST_PART:
            kept = escaped.encode()[:_KEPT_OF_LONG].decode(errors="ignore")
            return kept + _hash(part)
        return escaped or "%"

    def _is_kept(self, char: str, wide: bool) -> bool:
        if char.isascii():
            return char in "_-" or (char.isalnum() and not (self._ignores_case and char.isupper()))
        return wide and char.isalnum()


def _escape(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _hash(text: str) -> str:
    digest: str = blake3(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"%~{digest}"
