"""Growth: the public name of `vstate.values.growth`."""

from vstate.values.growth import MOST_RANGES, SHORT, Grown, Heap, grow

__all__ = ["MOST_RANGES", "SHORT", "Grown", "Heap", "grow"]
