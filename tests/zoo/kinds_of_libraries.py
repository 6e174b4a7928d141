"""The classes that a program makes with the libraries of the table. A class is None without its library."""

from __future__ import annotations

import dataclasses
from typing import Any

try:
    import attrs
except ImportError:
    pass
else:

    @attrs.define
    class Attrs:
        a: int
        parts: list[int] = attrs.field(factory=list)


try:
    import msgspec
except ImportError:
    pass
else:

    class Struct(msgspec.Struct):
        a: int
        parts: list[int] = []


try:
    import pydantic
except ImportError:
    pass
else:

    class Model(pydantic.BaseModel):
        goal: str
        steps: list[str] = []
        tags: set[str] = {"a", "b", "c"}

    class Private(pydantic.BaseModel):
        goal: str
        _hidden: list[str] = pydantic.PrivateAttr(default_factory=list)

    class Root(pydantic.RootModel[list[int]]):
        pass

    @pydantic.dataclasses.dataclass
    class PydanticData:
        name: str
        parts: list[int] = dataclasses.field(default_factory=list)

    def invalid() -> Any:
        try:
            Model(goal=1, steps=2)  # type: ignore[arg-type]  # invalid on purpose
        except pydantic.ValidationError as error:
            return error


def figure() -> Any:
    """A figure of matplotlib with a line."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(1, 1))
    made.subplots().plot([1, 2, 3])
    return made


def views() -> dict[str, Any]:
    """An array, and a view of some of its rows."""
    import numpy

    rows = numpy.zeros((10, 300))
    return {"all": rows, "rows": rows[2:4]}


def twice() -> list[Any]:
    """One array in two places."""
    import numpy

    return [numpy.zeros(3000)] * 2


def mixture() -> dict[str, Any]:
    """Arrays, bytes and objects inside of each other."""
    import numpy

    return {"data": [numpy.arange(2000.0), (int, {"deep": [bytearray(b"q")]})], "more": [range(3)]}


def frame() -> Any:
    """A frame with a column of each usual kind."""
    import numpy
    import pandas

    columns = {
        "n": numpy.arange(500),
        "x": numpy.linspace(0, 1, 500),
        "name": [f"row {i}" for i in range(500)],
        "when": pandas.date_range("2024-01-01", periods=500, freq="h"),
        "kind": pandas.Categorical(["a", "b"] * 250),
    }
    return pandas.DataFrame(columns)
