"""Attention backends: `auto` reports its selection; an explicit choice is used or is an error."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import zoo
from zoo.backends import Taken, choose
from zoo.cli import run
from zoo.errors import InputError
from zoo.transformer import Transformer

IDS = torch.tensor([[1, 2, 3, 4]])
FREE = "nothing speaks against it"


def built(builder: str = "decoder", **attention: Any) -> Transformer:
    sizes = {"n_layers": 2, "d_model": 8, "n_heads": 2, "d_ff": 8, "position": "rotary"}
    spec = {"format": 1, "name": "m", "builder": builder, "vocab": 9, **sizes}
    return zoo.build(
        spec | {"attention": {"kind": "multi_head", **attention}}, dtype=torch.float64
    ).eval()


@pytest.mark.parametrize(
    ("attention", "taken"),
    [
        ({}, Taken("fused", FREE, "causal flag")),
        ({"n_kv_heads": 1}, Taken("fused", FREE, "causal flag")),
        ({"window": 2}, Taken("fused", FREE, "mask (4, 4), causal flag")),
        ({"window": 4}, Taken("fused", FREE, "causal flag")),  # no token is outside the window
        ({"sinks": True}, Taken("math", "fused kernels know no `sinks`", "causal flag")),
        ({"softcap": 5.0}, Taken("math", "fused kernels know no `softcap`", "causal flag")),
    ],
)
def test_auto_says_what_it_took(attention: dict[str, Any], taken: Taken) -> None:
    with zoo.attention_backend("auto") as found:
        built(**attention)(IDS)
    assert found == {taken: 2}


def test_no_mask_is_made_where_the_flag_or_nothing_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused function gets no mask tensor; for padding, a mask of one row per sequence."""
    masks: list[Any] = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def noted(*args: Any, **options: Any) -> torch.Tensor:
        mask = options.get("attn_mask", args[3] if len(args) > 3 else None)
        masks.append((None if mask is None else tuple(mask.shape), options.get("is_causal")))
        return fused(*args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    built()(IDS)
    assert masks == [(None, True)] * 2
    masks.clear()
    built("encoder")(IDS, source_mask=torch.tensor([[True, True, True, False]]))
    assert masks == [((1, 1, 1, 4), False)] * 2
    masks.clear()
    zoo.generate(built(), [1, 2, 3], max_new_tokens=3)
    assert masks == [(None, True)] * 2 + [(None, False)] * 4
    masks.clear()
    zoo.generate(built(window=2), [1, 2, 3], max_new_tokens=3)  # older tokens are not cached
    assert masks == [((3, 3), False)] * 2 + [(None, False)] * 4


@pytest.mark.parametrize("name", ["fused", "flash", "math"])
def test_backends_agree(name: Any) -> None:
    model = built(n_kv_heads=1)
    expected = model(IDS)
    with zoo.attention_backend(name) as taken:
        found = model(IDS)
    assert taken == {Taken(name, "chosen", "causal flag"): 2}
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_choice_is_in_force_in_its_block_only() -> None:
    with zoo.attention_backend("math"), zoo.attention_backend("fused") as inner:
        built()(IDS)
    with zoo.attention_backend("auto") as after:
        built()(IDS)
    assert [taken.backend for taken in (*inner, *after)] == ["fused", "fused"]


@pytest.mark.parametrize("name", ["fused", "flash", "efficient", "cudnn"])
def test_a_choice_never_falls_back(name: Any) -> None:
    with zoo.attention_backend(name):
        with pytest.raises(InputError, match=f"`{name}` was chosen, .*: .* `softcap`"):
            built(softcap=2.0)(IDS)
        with pytest.raises(InputError, match=f"`{name}` was chosen, .*weights, which were asked"):
            built()(IDS, return_attention=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="these kernels are there on a GPU")
@pytest.mark.parametrize("name", ["efficient", "cudnn"])
def test_a_kernel_that_this_machine_lacks(name: Any) -> None:
    with (
        zoo.attention_backend(name),
        pytest.raises(InputError, match="torch has no such kernel for these inputs here"),
    ):
        built()(IDS)


def test_two_threads_cannot_choose_at_once() -> None:
    """The first to leave would reset the other's choice, and the last would restore the first's."""
    with ThreadPoolExecutor(1) as other, zoo.attention_backend("math"):
        theirs = zoo.attention_backend("fused")
        with pytest.raises(InputError, match="another thread has chosen"):
            other.submit(theirs.__enter__).result()
        assert choose(None, lambda: "none") == "math"
    assert choose(None, lambda: "none") == "fused"


def test_an_unknown_backend() -> None:
    with pytest.raises(InputError, match="did you mean `flash`"), zoo.attention_backend("flsh"):  # type: ignore[arg-type]
        pass


def test_show_backends(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "vaswani-base", "--backends", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["attention"] for row in rows] == [
        "encoder.block.self_attn",
        "decoder.block.self_attn",
        "decoder.block.cross_attn",
    ]
    assert {(row["takes"], row["why"]) for row in rows} == {("fused", FREE)}
