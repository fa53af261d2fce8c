"""Specs with a rule, or a value, for every layer: the work grows linearly, not quadratically, with
the layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from random_specs import REGISTRY
from trials import calls, spec

import zoo
from zoo.drawing import to_svg
from zoo.reports.diff import diff_data
from zoo.reports.sides import Side
from zoo.resolving.layer_rules import MOST_RULES
from zoo.showing.full_form import to_toml
from zoo.showing.show import backends_data, summary_data


def with_rules(n_layers: int, selector: str) -> str:
    """Return a spec with this number of layers, and a rule with a different width for each."""
    rules = [f"[[encoder.layers]]\n{selector.format(i)}\nd_ff = {i + 1}" for i in range(n_layers)]
    return spec(*rules, n_layers=str(n_layers))


def with_values(n_layers: int) -> str:
    """Return a spec with a different width for each layer, in one list."""
    widths = list(range(1, n_layers + 1))
    return spec(n_layers=str(n_layers), d_ff=f"{{ per_layer = {widths} }}")


@pytest.mark.parametrize(
    "made", [lambda n: with_rules(n, "at = [{}]"), with_values], ids=["rules", "values"]
)
@pytest.mark.parametrize(
    "done",
    [
        lambda spec: zoo.read_spec(spec.to_dict(), registry=REGISTRY),
        summary_data,
        backends_data,
        lambda spec: to_toml(spec.to_dict(), spec.origin),
        to_svg,
        lambda spec: diff_data(Side("a", spec), Side("b", spec)),
    ],
    ids=["read", "show", "backends", "full form", "draw", "diff"],
)
def test_work_grows_with_the_layers(
    done: Callable[[zoo.ModelSpec], object], made: Callable[[int], str]
) -> None:
    warm, few, many = (zoo.read_spec(made(n)) for n in (10, 10, 40))
    done(warm)  # fills the caches
    # Linear work is 4 times as much, quadratic work 16 times; caches and collections move a little.
    assert calls(lambda: done(many)) < 5 * calls(lambda: done(few))


def test_a_layer_has_no_more_rules_than_are_read_fast() -> None:
    rule = "[[encoder.layers]]\nfirst = 2\nd_ff = 3\n"
    text = spec() + rule.replace("first = 2", "at = [1]") + MOST_RULES * rule
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec(text)
    message, place = caught.value.problems[-1][:2]
    assert message == f"more than {MOST_RULES} rules speak of one layer"
    assert place is not None
    assert place.line == text.count("\n") - 2
    rules = "".join(rule.replace("first = 2", f"at = [{i}]") for i in range(MOST_RULES + 1))
    zoo.read_spec(spec(n_layers=str(MOST_RULES + 1)) + rules)
