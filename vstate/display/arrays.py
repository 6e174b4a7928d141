"""Arrays: dtype, shape and range of an array of numpy, with its first and last elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from vstate.display.cells import cell_text
from vstate.values.arrays import Array, index_of

_MOST_MEASURED: Final = 1_000_000  # elements for the range; a second at most
_BLOCK: Final = 10_000
_ALL: Final = 200  # elements, up to which all are shown
_FIRST: Final = 60
_LAST: Final = 20
_FIRST_ROWS: Final = 3
_MOST_COLUMNS: Final = 200
_SAMPLED: Final = 200_000  # elements for the form
_BARS: Final = 24
_POINTS: Final = 200
_LARGEST: Final = 1e300  # of a number whose form is drawn: sums of larger ones overflow


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array. `first` and `last` are texts of elements, in the order of memory, in rows of `columns`."""

    type: str
    dtype: str
    shape: tuple[int, ...]
    order: str
    low: str
    """The least number; "" if the elements are no numbers, or too many to look at."""
    high: str
    nans: int
    columns: int
    """Elements in a row of an array of several dimensions; 0 for one dimension."""
    first: tuple[str, ...]
    last: tuple[str, ...]
    last_at: int
    """The place of the first element of `last`."""

    def index(self, place: int) -> tuple[int, ...]:
        """The index of the element at a place in memory; without its last step if `columns` are known."""
        found = index_of(place, self.shape, is_fortran=self.order == "F")
        return found[:-1] if self.columns else found


def array_view(array: Array) -> ArrayView | None:
    """The view of an array; None if its form is not known."""
    if "shape" not in array.fields:
        return None
    count = array.count
    order = str(array.fields.get("order", "C"))
    shape = array.shape
    columns = shape[-1] if len(shape) > 1 and order == "C" else 0
    first, last = (count, 0) if count <= _ALL else (_FIRST, _LAST)
    if 0 < columns <= _MOST_COLUMNS and last:  # whole rows
        first, last = max(first // columns, _FIRST_ROWS) * columns, max(last // columns, 1) * columns
        first, last = (first, last) if first + last < count else (count, 0)
    low, high, nans = _range(array)
    return ArrayView(
        array.type,
        str(array.fields.get("dtype")),
        shape,
        order,
        low,
        high,
        nans,
        columns if columns <= _MOST_COLUMNS else 0,
        tuple(cell_text(element) for element in array.elements(0, first)),
        tuple(cell_text(element) for element in array.elements(count - last, count)),
        count - last,
    )


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The form of an array's numbers: how many lie in each of some equal ranges from `low` to `high`, and a
    line with the means of its parts in order. `sampled` tells whether only some of the numbers were read.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    line: tuple[float, ...]
    sampled: bool


def array_shape(array: Array) -> ArrayShape | None:
    """The form of an array of numbers; None for other arrays, and where no number is finite."""
    count = array.count
    numbers: list[float] = []
    # Whole blocks, evenly spread: single elements would be decoded one by one.
    step = max(count // (_SAMPLED // _BLOCK), _BLOCK)
    for start in range(0, count, step):
        for element in array.elements(start, min(start + _BLOCK, count)):
            if isinstance(element, bool) or not isinstance(element, int | float):
                return None
            try:
                number = float(element)
            except OverflowError:  # an int of more than 308 digits
                return None
            if math.isfinite(number):
                numbers.append(number)
    if not numbers or max(map(abs, numbers)) > _LARGEST:
        return None
    low, high = min(numbers), max(numbers)
    width = (high - low) / _BARS
    counts = [0] * _BARS
    for number in numbers:
        counts[min(int((number - low) / width), _BARS - 1) if 0 < width < math.inf else 0] += 1
    parts = min(len(numbers), _POINTS)
    ends = [len(numbers) * part // parts for part in range(parts + 1)]
    line = tuple(math.fsum(number / (b - a) for number in numbers[a:b]) for a, b in pairwise(ends))
    return ArrayShape(low, high, tuple(counts), line, step > _BLOCK)


def _range(array: Array) -> tuple[str, str, int]:
    """The least and the greatest number, and the number of those that are NaN."""
    count = array.count
    if array.raw is None or not count or count > _MOST_MEASURED:
        return "", "", 0
    low: int | float | None = None
    high: int | float | None = None
    nans = 0
    for start in range(0, count, _BLOCK):
        elements = array.elements(start, min(start + _BLOCK, count))
        numbers = [n for n in elements if isinstance(n, int | float) and not isinstance(n, bool)]
        if len(numbers) < len(elements):
            return "", "", 0
        known = [n for n in numbers if not math.isnan(n)]
        nans += len(numbers) - len(known)
        if known:
            low = min(known) if low is None else min(low, *known)
            high = max(known) if high is None else max(high, *known)
    if low is None or high is None:
        return "", "", nans
    return cell_text(low), cell_text(high), nans
