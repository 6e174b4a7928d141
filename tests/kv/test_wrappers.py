"""Stores in front of stores pass on everything that the contract knows, also what it comes to know later."""

import pytest

from vstate.kv import Cache, KVStore, Prefixed, ReadOnly, Tiered

CONTRACT = {name for name in vars(KVStore) if not name.startswith("_")} | {"__contains__"}

OWN = {
    # Who writes nothing has nobody to wait for.
    ReadOnly: {"turn"},
}


@pytest.mark.parametrize("wrapper", [Cache, Prefixed, ReadOnly, Tiered])
def test_nothing_is_left_to_a_default(wrapper: type[KVStore]) -> None:
    """A default of KVStore would do with the store behind what that store does better, or otherwise."""
    assert len(CONTRACT) > 18
    assert CONTRACT - vars(wrapper).keys() == OWN.get(wrapper, set())
