"""File: the bytes of a file with its kind, a value that is stored without pickle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from vstate.errors import InvalidInput

KINDS: Final = ("file", "executable", "link")
"""The kinds of files, as entries hold them: git's modes 100644, 100755 and 120000."""


@dataclass(frozen=True, slots=True)
class File:
    """A file as a value: its bytes, and whether it is a plain file, an executable one or a symbolic link.

    The bytes of a link are its target. No surface of vstate unpickles a File: `vstate show`, `vstate diff`
    and the viewer show its text or its picture. Raises InvalidInput for another kind, and TypeError for data
    that are no bytes.
    """

    data: bytes = field(repr=False)
    kind: str = "file"

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            raise TypeError(f"the data of a File are bytes, not {type(self.data).__name__}")
        if self.kind not in KINDS:
            raise InvalidInput(f"the kind of a File is one of {', '.join(KINDS)}, not {self.kind!r}")

    def text(self) -> str | None:
        """The file as text, if it is a text of UTF-8 without zero bytes; else None."""
        if b"\0" in self.data:
            return None
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            return None

    def __repr__(self) -> str:
        return f"<File: {self.kind}, {len(self.data):,} bytes>"
