"""The language of family files: expressions, patterns of names, relayouts."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.families.expression import ExpressionError, UnknownNameError, parse
from zoo.families.pattern import (
    Pattern,
    PatternError,
    declared_words,
)
from zoo.families.relayout import Relayout

LONG = list(range(50_000))
NAMES: dict[str, Any] = {
    "n": 3,
    "x": 2.5,
    "word": "gelu",
    "xs": [1, 2, 3],
    "t": {"a": {"b": 7}},
    "long": LONG,
    "text": "a" * 99_999 + "b",
    "nested": [LONG[:1000]] * 1000,
}
FUNCTIONS = {
    "len": len,
    "range": lambda *a: list(range(*a)),
    "str": str,
    "index": lambda xs, x: xs.index(x),
}


def value(source: str) -> Any:
    return parse(source, FUNCTIONS).value(NAMES, FUNCTIONS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("1 + 2 * n", 7),
        ("-n ** 2", -9),
        ("7 // 2 + 7 % 2", 4),
        ("x / 2", 1.25),
        ("n ** -0.5", 3**-0.5),
        ("true and none", None),
        ("false or 'a'", "a"),
        ("[true, false, none]", [True, False, None]),
        ("not n", False),
        ("1 < n <= 3", True),
        ("n == 4", False),
        ("'a' in ['a']", True),
        ("'b' not in {'a': 1}", True),
        ("'big' if n > 2 else 'small'", "big"),
        ("{'kind': word}", {"kind": "gelu"}),
        ("[i * 2 for i in range(n) if i]", [2, 4]),
        ("[i for i in [i + 1 for i in xs]]", [2, 3, 4]),
        ("word[0:2]", "ge"),
        ("xs[-1]", 3),
        ("t.a.b", 7),
        ("t.nothing.b", None),
        ("t['a']", {"b": 7}),
        ("t.__class__", None),  # a field that the table does not have
        ("t | {'a': n} | {'c': 1}", {"a": 3, "c": 1}),
        ("[t | {'a': 1}, t]", [{"a": 1}, {"a": {"b": 7}}]),
        ("len(xs) + len(word)", 7),
    ],
)
def test_value(source: str, expected: object) -> None:
    found = value(source)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__import__('os')", "there is no function `__import__`"),
        ("().__class__", "`()` is not allowed"),
        ("(lambda: 1)()", "is not allowed"),
        ("word.upper()", "is not allowed"),
        ("[a for a in xs for b in xs]", "is not allowed"),
        ("xs[0:3:2]", "`0:3:2` is not allowed"),
        ("f'{n}'", "is not allowed"),
        ("b'1'", "is not allowed"),
        ("1j", "is not allowed"),
        ("...", "is not allowed"),
        ("n := 2", "is no expression"),
        ("len(*xs)", "`*xs` is not allowed"),
        ("len(**t)", "is not allowed"),
        ("{**t}", "is not allowed"),
        ("(1, 2)", "is not allowed"),
        ("{1, 2}", "is not allowed"),
        ("n & 1", "is not allowed"),
        ("~n", "is not allowed"),
        ("n << 2", "is not allowed"),
        ("await n", "is not allowed"),
        ("", "is no expression"),
        ("1 +", "is no expression"),
        ("(" * 150, "is no expression"),
        ("x" * 3000, "is longer than 2,000 characters"),
    ],
)
def test_what_is_no_expression(source: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(message)):
        value(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("9 ** 64 ** 2", "the exponent is too large"),
        ("2 ** 64", "the number is too large"),
        ("10 ** 60", "the number is too large"),
        ("xs * 10", "it is not made of numbers"),
        ("'a' * 10", "it is not made of numbers"),
        ("'%99999999d' % 1", "it is not made of numbers"),
        ("n | 1", "`n | 1` has no value: it is not made of tables"),
        ("t | none", "it is not made of tables"),
        ("1 / 0", "division by zero"),
        ("(0 - 8) ** 0.5", "it is the root of a negative number"),
        ("xs[9]", "list index out of range"),
        ("t['z']", "there is no 'z'"),
        ("word.a", "it is no table with a field `a`"),
        ("1 + word", "unsupported operand type(s)"),
        ("len(n)", "has no len()"),
        ("index(n, 1)", "has no attribute 'index'"),
        ("-" * 800 + "n", "is nested too deeply"),
        (
            "[[[i for i in range(999)] for j in range(999)] for k in range(999)]",
            "takes more than 200,000 steps",
        ),
    ],
)
def test_what_has_no_value(source: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(message)):
        value(source)


@pytest.mark.parametrize(
    "source",
    [
        "[i for i in range(999) if -i in long]",
        "[i for i in range(999) if i not in long]",
        "[i for i in range(999) if [long, i] == [long, n]]",
        "[i for i in range(999) if long + xs]",
        "[i for i in range(999) if long[n:]]",
        "[i for i in range(999) if range(50000)]",
        "[i for i in range(999) if index(long, 49999)]",
        "[i for i in range(9999) if 'ba' in text]",
        "str(nested)",
        "nested in [nested]",
        "[i for i in range(999) if {'a': nested[:100]} | {'a': 1}]",
    ],
)
def test_each_item_that_an_operation_may_look_at_is_a_step(source: str) -> None:
    with pytest.raises(ExpressionError, match="takes more than 200,000 steps"):
        value(source)


def test_a_long_list_may_be_looked_at_a_few_times() -> None:
    assert value("49999 in long and len(long) == 50000 and long[0] == 0")


def test_a_power_is_refused_before_it_is_computed() -> None:
    """Computing 9 ** 9 ** 9 would take minutes."""
    assert value("1 ** 64") == 1
    with pytest.raises(ExpressionError, match="exponent is too large"):
        value("1 ** 65")


def test_a_variable_is_known_inside_its_list_alone() -> None:
    assert value("[[n for n in [7]], n]") == [[7], 3]
    with pytest.raises(UnknownNameError) as error:
        value("[[i for i in xs], i]")
    assert error.value.name == "i"


def test_a_name_that_nothing_has() -> None:
    with pytest.raises(UnknownNameError) as error:
        value("n + missing")
    assert error.value.name == "missing"


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_any_text_is_a_value_or_an_error(source: str) -> None:
    with contextlib.suppress(ExpressionError):
        value(source)


def pattern(text: str, *, zoo_side: bool = False) -> Pattern:
    words = declared_words("h.{i}.{p:query=q|key=k|v}.{w}")
    return Pattern(text, words, zoo_side)


def test_a_name_is_matched_and_filled_in_both_directions() -> None:
    stored = pattern("h.{i}.{p:query=q|key=k|v}.{w}")
    own = pattern("layers.{i}.{p}_proj.{w}", zoo_side=True)
    bindings = stored.match("h.12.query.bias")
    assert bindings == {"i": "12", "p": "q", "w": "bias"}
    assert own.fill(bindings) == "layers.12.q_proj.bias"
    assert own.match("layers.12.q_proj.bias") == bindings
    assert stored.fill(bindings) == "h.12.query.bias"


@pytest.mark.parametrize(
    "name", ["h.x.v.bias", "h.1.q.bias", "h.1.v.gamma", "h.1.v.bias.2", "h1.v.bias"]
)
def test_another_name_is_not_matched(name: str) -> None:
    assert pattern("h.{i}.{p}.{w}").match(name) is None


def test_a_placeholder_that_stands_twice_is_the_same_both_times() -> None:
    twice = Pattern("{i}.{i}", {})
    assert twice.match("3.3") == {"i": "3"}
    assert twice.match("3.4") is None


def test_the_rest_of_a_name_is_anything_but_nothing() -> None:
    open_ended = Pattern("mtp.{rest}", {})
    assert open_ended.match("mtp.layers.0.norm.weight") == {"rest": "layers.0.norm.weight"}
    assert open_ended.match("mtp.") is None
    assert open_ended.match("model.mtp.norm") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{p:a=x|b=x}", "two words of `p` mean the same"),
        ("{p:a|b}.{p:c}", "`p` is declared twice"),
        ("h.{1}", "`1` cannot be a placeholder"),
        ("h.{1:a|b}", "`1` cannot be a placeholder"),
    ],
)
def test_words_that_cannot_be_inverted(text: str, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        declared_words(text)


def test_fused_by_thirds_and_stored_as_in_out() -> None:
    """GPT-2: a matrix (in, out) whose columns are q, k and v."""
    q, k, v = (torch.randn(4, 4) for _ in range(3))
    fused = torch.cat([q, k, v]).T.contiguous()
    relayout = Relayout(transpose=True, axes="p ...", parts=(4, 4, 4))
    assert all(map(torch.equal, relayout.apply(fused), (q, k, v)))
    assert torch.equal(relayout.undo([q, k, v]), fused)
    assert all(map(torch.equal, relayout.apply(fused[0]), (q[:, 0], k[:, 0], v[:, 0])))


def test_fused_head_by_head() -> None:
    """BLOOM: for each head its rows of q, then of k, then of v."""
    heads, width = 3, 2
    q, k, v = (torch.randn(heads * width, 5) for _ in range(3))
    rows = [m[h * width : (h + 1) * width] for h in range(heads) for m in (q, k, v)]
    fused = torch.cat(rows)
    relayout = Relayout(axes="(h p e) ...", parts=(1, 1, 1), sizes={"h": heads, "e": width})
    assert all(map(torch.equal, relayout.apply(fused), (q, k, v)))
    assert torch.equal(relayout.undo([q, k, v]), fused)


def test_fused_by_groups_of_unequal_parts() -> None:
    """Falcon: for each group of queries their heads, then one of k, then one of v."""
    groups, queries, width = 2, 3, 4
    q, k, v = (torch.randn(groups * n * width) for n in (queries, 1, 1))
    rows = [
        part
        for g in range(groups)
        for part in (
            q[g * queries * width : (g + 1) * queries * width],
            k[g * width : (g + 1) * width],
            v[g * width : (g + 1) * width],
        )
    ]
    fused = torch.cat(rows)
    sizes = {"g": groups, "e": width}
    relayout = Relayout(axes="(g p e) ...", parts=(queries, 1, 1), sizes=sizes)
    assert all(map(torch.equal, relayout.apply(fused), (q, k, v)))
    assert torch.equal(relayout.undo([q, k, v]), fused)


def test_fused_in_turn_with_other_axes() -> None:
    """gpt-oss: experts (in, out), whose columns are gate and up in turn."""
    gate, up = torch.randn(2, 3, 5), torch.randn(2, 3, 5)  # experts, out, in
    fused = torch.stack([gate, up], dim=2).reshape(2, 6, 5).transpose(1, 2).contiguous()
    relayout = Relayout(axes="e d (f p) -> e (f p) d", parts=(1, 1))
    assert all(map(torch.equal, relayout.apply(fused), (gate, up)))
    assert torch.equal(relayout.undo([gate, up]), fused)


@pytest.mark.parametrize(
    ("axes", "sizes", "shape", "made"),
    [("1 v -> v", {}, (1, 5), (5,)), ("(e f) d -> e d f", {"e": 2}, (6, 4), (2, 4, 3))],
)
def test_one_tensor_in_another_shape(
    axes: str, sizes: dict[str, int], shape: tuple[int, ...], made: tuple[int, ...]
) -> None:
    tensor, relayout = torch.randn(shape), Relayout(axes=axes, sizes=sizes)
    (found,) = relayout.apply(tensor)
    assert found.shape == made
    assert torch.equal(relayout.undo([found]), tensor)


def test_a_shape_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Relayout(axes="(h p e) ...", parts=(1, 1, 1), sizes={"h": 3, "e": 2}).apply(torch.ones(17))
    with pytest.raises(ValueError, match="does not fit"):
        Relayout(axes="(a b)", sizes={"a": 0}).apply(torch.ones(17))


@pytest.mark.parametrize("shape", [(8, 5), (8,)])
def test_parts_that_do_not_fit_together(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[4, 6\] and \[8"):
        Relayout(axes="(p) ...", parts=(4, 8)).undo([torch.ones(4, 6), torch.ones(shape)])
