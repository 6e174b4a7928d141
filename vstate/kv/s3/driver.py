"""obstore, loaded when it is first needed, and once more after each fork.

obstore works in threads of its own, which belong to the loaded library and do not survive a fork. A child
that used the library would wait forever, and would take events away from its parent. So a child loads the
library a second time, from a copy of its file: only a copy gets threads of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

from vstate.errors import InvalidInput, StoreUnavailable
from vstate.extras import install
from vstate.forks import new_lock, renew_in_child

_LIBRARY = "obstore._obstore"

_loading = new_lock()
_stale = False
_abandoned: list[object] = []


def load_obstore() -> Any:
    """The module obstore, usable in this process. InvalidInput says how to install it."""
    global _stale
    with _loading:
        try:
            if _stale:
                _load_again()
                _stale = False
            import obstore.store
        except ImportError:
            raise InvalidInput(
                f"a store on S3, Google Cloud Storage or Azure needs obstore: {install('s3')}"
            ) from None
        return obstore


def abandon(*things: object) -> None:
    """Keep the objects of a forked parent alive: to free them would reach for threads that are gone."""
    _abandoned.extend(things)


class _Finder:
    """Finds the library in a copy of its file, and leaves all other modules to others."""

    def __init__(self, file: str) -> None:
        self._file = file

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _LIBRARY:
            return None
        return spec_from_file_location(name, self._file, loader=ExtensionFileLoader(name, self._file))


def _load_again() -> None:
    spec = sys.modules[_LIBRARY].__spec__
    names = [name for name in sys.modules if name == "obstore" or name.startswith("obstore.")]
    before = {name: sys.modules.pop(name) for name in names}
    abandon(before)
    try:
        assert spec is not None
        assert spec.origin is not None
        handle, copy = tempfile.mkstemp(prefix="vstate-", suffix=os.path.basename(spec.origin))
        try:
            os.close(handle)
            shutil.copyfile(spec.origin, copy)
            finder: Any = _Finder(copy)
            sys.meta_path.insert(0, finder)
            try:
                import obstore.store  # noqa: F401  # imported for its effect: it fills sys.modules
            finally:
                sys.meta_path.remove(finder)
        finally:
            os.unlink(copy)
    except (OSError, ImportError) as error:
        sys.modules.update(before)
        raise StoreUnavailable(
            f"obstore cannot be used in this process, which was forked from one that used it ({error}): set "
            "TMPDIR to a directory with 20 MB of room that may hold programs, or start the process by spawn"
        ) from None


def _load_anew(loading: object) -> None:
    global _stale
    _stale = _stale or _LIBRARY in sys.modules


renew_in_child(_loading, _load_anew)
