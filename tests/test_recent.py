"""Recent: the entries that were used last."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from vstate.recent import Recent


@given(st.lists(st.tuples(st.sampled_from("gsd"), st.integers(0, 5), st.integers(1, 4))))
def test_it_keeps_what_was_used_last(steps: list[tuple[str, int, int]]) -> None:
    """After any steps it has the entries of a plain model, in their order, and no more than fit."""
    recent = Recent[int, int](6, lambda value: value)
    model: OrderedDict[int, int] = OrderedDict()
    for step, key, value in steps:
        if step == "g":
            assert recent.get(key) == model.get(key)
            if key in model:
                model.move_to_end(key)
        elif step == "s":
            recent[key] = value
            model.pop(key, None)
            model[key] = value
            while sum(model.values()) > 6:
                model.popitem(last=False)
        else:
            recent.discard(key)
            model.pop(key, None)
        assert recent.items() == list(model.items())


def test_a_value_that_is_too_large_is_not_kept() -> None:
    """The others stay, and an older value of its key goes; among the least that stay it is kept alone."""
    recent, always = Recent[str, str](5, len), Recent[str, str](5, len, least=1)
    for each in (recent, always):
        each["a"], each["b"] = "12", "34"
        each["a"] = "123456"
    assert recent.items() == [("b", "34")]
    assert always.items() == [("a", "123456")]
