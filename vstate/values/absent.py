"""ABSENT, which stands for no value in a merge; here because `import vstate` does not load `merging`."""

from __future__ import annotations

from typing import Final, final


@final
class _Absent:
    """The type of ABSENT, which stands for "no such key": None is a value."""

    __slots__ = ()

    def __new__(cls) -> _Absent:
        return ABSENT

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        return "ABSENT"  # a name of this module, so that copies and pickles are the one instance


ABSENT: Final[_Absent] = object.__new__(_Absent)
"""The value of a key that one side of a merge lacks. It is false, and it is no None, which is a value."""


class Unmergeable(Exception):
    """The policy cannot decide. `reason` says why, and `path` where in the value, such as `["a"]["b"]`."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason
