"""Page: the files of the page, and its modules joined into one script."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).with_name("static")
_IMPORT: Final = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT: Final = re.compile(
    r"^export (?:async )?(?:function|const|class) (?:(\w+)|\{([^}]*)\})", re.MULTILINE
)


def read_static(name: str) -> str:
    """The text of a file of the page."""
    return (STATIC / name).read_text("utf-8")


@lru_cache
def joined_script(*names: str) -> str:
    """These modules of the page, and those that they import, as one script.

    Each module is a function that returns its exports. One request is quicker than one for each module.
    """
    done: dict[str, str] = {}
    for name in names:
        _join(name, done)
    return '"use strict";\n' + "\n".join(done.values())


def _join(name: str, done: dict[str, str]) -> None:
    source = read_static(f"{name}.js")
    for _, needed in _IMPORT.findall(source):
        if needed not in done:
            _join(needed, done)
    found = (many or one for one, many in _EXPORT.findall(source))
    names = [name.strip() for each in found for name in each.split(",") if name.strip()]
    body = _IMPORT.sub(r"const \1 = module_\2;", source)
    body = re.sub(r"^export ", "", body, flags=re.MULTILINE)
    done[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(names)} }};\n}})();"
