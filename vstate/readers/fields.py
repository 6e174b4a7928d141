"""Fields: records whose lists have a key for each item, as whole values; and checkpoints, the newest one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from vstate.readers.stored import Kept, Stored

_STEP: Final = "step"
_CHECKPOINTS: Final = "checkpoints/"


def fields_state(stored: Stored, name: str) -> Mapping[str, Any]:
    """The fields of a record by their names, and `step` without them. A list is one value again."""
    step = dict(stored.get(_STEP))
    values: dict[str, Any] = {_STEP: {key: value for key, value in step.items() if key != "fields"}}
    fields: dict[str, tuple[str, bytes]] = {}
    for key, data in stored.entries():
        record, slash, rest = key.partition("/")
        if slash and record == name:
            quoted = rest.partition("/")[0]
            fields["" if quoted == "%" else unquote(quoted)] = f"{name}/{quoted}/", data
        elif key != _STEP:
            values[key] = Kept(data)
    for field, has_items in step["fields"]:
        shown = f"{name}/{field}" if field in values or not field else field
        if has_items:  # an empty list has no key
            values[shown] = [*stored.values(fields[field][0])] if field in fields else []
        else:
            values[shown] = Kept(fields[field][1])
    return values


state_fields = partial(fields_state, name="state")
checkpoint_fields = partial(fields_state, name="checkpoint")


def workflow_state(stored: Stored) -> Mapping[str, Any]:
    """The newest checkpoint of a workflow of Agent Framework, by its time, without the values of others."""
    abouts = {
        key: stored.value(key, data)
        for key, data in stored.entries(_CHECKPOINTS)
        if key.endswith("/about") and key.count("/") == 2
    }
    if not abouts:
        return {}
    newest = max(abouts, key=lambda key: datetime.fromisoformat(abouts[key]["timestamp"]))
    prefix = newest.removesuffix("about")
    own = {key.removeprefix(prefix): Kept(data) for key, data in stored.entries(prefix) if key != newest}
    about = {name: value for name, value in abouts[newest].items() if name != "state"}
    return {**own, "checkpoint": about, "checkpoints": sorted(each["timestamp"] for each in abouts.values())}


def llama_run_state(stored: Stored) -> Mapping[str, Any]:
    """The state of a run of a workflow of LlamaIndex, as its serializer gave it."""
    found = stored.get("state")
    if found is None:
        return {}
    return {"state": found["text"] if found["tree"] is None else found["tree"]}
