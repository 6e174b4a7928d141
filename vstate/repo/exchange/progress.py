"""Progress of an export, an import, a push, a fetch or a clone."""

from __future__ import annotations

from collections.abc import Callable

TransferProgress = Callable[[str, int, int | None], None]
"""Called now and then with the step, the count so far, and the count at the end if that is known."""
