"""One process of the zoo: `journey.py write STORE PACKAGE…`, or `read`.

Prints the faults of each kind as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

from kinds_of_values import Kind, edit, kinds, make, view

from vstate import Disk, Unpicklable, Versioned

Results = dict[str, dict[str, str]]


def attempt(results: Results, kind: Kind, step: str, action: Callable[[], str]) -> None:
    """Note "" for a step that went well, else its fault."""
    try:
        fault = action()
    except Exception as error:  # every fault of every library is a result
        fault = f"{type(error).__name__}: {error}"
    results.setdefault(kind.source, {})[step] = fault


def write(state: Versioned, chosen: list[Kind]) -> Results:
    """Commit a value of each kind under a key of its own."""
    results: Results = {}

    def commit(kind: Kind) -> str:
        key = kind.source[:500]
        state[key] = make(kind)
        try:
            made = state.commit(key)
        except Unpicklable as error:
            state.discard(key)
            named = error.keys == (key,) and f'state["{key}"]' in str(error)
            return "" if kind.refused and named else f"refused: {error}"
        if kind.refused:
            return "committed, and not refused"
        return "" if made is not None and state.status().keys() == set() else "changes by itself"

    for kind in chosen:
        attempt(results, kind, "commit", lambda kind=kind: commit(kind))
    return results


def read(store: Disk, chosen: list[Kind]) -> Results:
    """Read each value, merge two handles that only read, and edit each value."""
    results: Results = {}
    one, other = Versioned(store), Versioned(store)
    held: dict[str, Any] = {}
    others: dict[str, Any] = {}

    def load(kind: Kind) -> str:
        held[kind.source], others[kind.source] = one[kind.source[:500]], other[kind.source[:500]]
        return ""

    for kind in chosen:
        attempt(results, kind, "read", lambda kind=kind: load(kind))
    chosen = [kind for kind in chosen if kind.source in held]
    changed = one.status().keys() | other.status().keys()
    for kind in chosen:
        results[kind.source]["unchanged"] = "reading it is a change" if kind.source[:500] in changed else ""
    one["of one"], other["of the other"] = 1, 1
    try:
        one.commit(), other.commit()
        merged = ""
    except Exception as error:  # the result says which
        merged = f"{type(error).__name__}: {error}"
    for kind in chosen:
        results[kind.source]["merged"] = merged if kind.source[:500] in (merged or changed) else ""
    one.refresh()
    latest = one.checkout("HEAD")
    for kind in chosen:  # a view may fill caches of the value, so it looks at another copy
        attempt(results, kind, "view", lambda kind=kind: compare(kind, make(kind), latest[kind.source[:500]]))

    def change(kind: Kind) -> str:
        key, expected = kind.source[:500], make(kind)
        edit(kind, held[kind.source])
        edit(kind, expected)
        made = one.commit(key)
        touched = [] if made is None else list(one.repo.changes(made).keys())
        return (
            f"the edit changed {touched}"
            if touched != [key]
            else compare(kind, expected, one.checkout("HEAD")[key])
        )

    for kind in chosen:
        if kind.edit:
            attempt(results, kind, "edit", lambda kind=kind: change(kind))
    return results


def compare(kind: Kind, expected: Any, found: Any) -> str:
    """The difference of two views, or ""."""
    one, other = view(kind, expected), view(kind, found)
    return "" if same(one, other) else f"{one!r} came back as {other!r}"


def same(one: Any, other: Any) -> bool:
    """Whether two views are equal; arrays and tables are compared by their texts."""
    try:
        if bool(one == other):
            return True
    except ValueError:  # an array has no truth
        pass
    return type(one) is type(other) and repr(one) == repr(other) and " at 0x" not in repr(one)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    mode, place, *packages = sys.argv[1:]
    chosen = [kind for kind in kinds() if kind.package in packages]
    store = Disk(place, durability="process")
    if mode == "write":
        found = write(Versioned(store), chosen)
    else:
        found = read(store, [kind for kind in chosen if not kind.refused])
    json.dump(found, sys.stdout)
