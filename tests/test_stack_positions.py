"""The layers that a position scheme is applied in, and the position of each token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.stacks import FREE, HEADS, LENGTH, VOCAB, built, same, spec, vectors
from references.transformer import Layer
from transformers.models.t5.modeling_t5 import T5Attention

import zoo
from zoo.transformer import Transformer

T5 = {"kind": "t5_buckets", "n_buckets": 8}
OTHER = {"kind": "t5_buckets", "n_buckets": 16}

# --- seen in attention maps: without queries, weights are softmax(bias) ---------------------------


def maps(model: Transformer, *inputs: torch.Tensor) -> Any:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                parameter.zero_()
    return model(*inputs, return_attention=True)[1]


def alibi(n_heads: int = HEADS, *, causal: bool) -> torch.Tensor:
    at = torch.arange(LENGTH)
    bias = torch.stack(
        [-(2.0 ** (-8 * (h + 1) / n_heads)) * (at[:, None] - at).abs() for h in range(n_heads)]
    )
    return softmax(bias, causal=causal)


def softmax(bias: torch.Tensor, *, causal: bool) -> torch.Tensor:
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1) if causal else torch.tensor(False)
    return bias.double().masked_fill(hidden, -torch.inf).softmax(-1)


def t5_bias(table: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """The bias (heads, query, key) of a table (buckets, heads); `transformers` has the buckets."""
    at = torch.arange(LENGTH)
    buckets = T5Attention._relative_position_bucket(
        at - at[:, None], bidirectional=not causal, num_buckets=len(table), max_distance=6
    )
    return table.detach().double()[buckets].movedim(-1, 0)


def test_positions_of_single_layers() -> None:
    rules = [{"at": [1], "position": "none"}]
    model = built(**FREE | {"position": "alibi"}, encoder={"layers": rules})
    first, second = maps(model, vectors()).encoder
    torch.testing.assert_close(first[0], alibi(causal=False))
    torch.testing.assert_close(second, torch.full_like(second, 1 / LENGTH))


def test_a_layer_without_attention_ignores_the_second_scheme() -> None:
    rules = [{"at": [0], "self_attn": "none"}]
    own = {"relative": "alibi", "layers": rules}
    (only,) = maps(built(**FREE | {"position": "none"}, encoder=own), vectors()).encoder
    torch.testing.assert_close(only[0], alibi(causal=False))
    none = {"relative": "alibi", "layers": [{"first": 2, "self_attn": "none"}]}
    with pytest.raises(zoo.SpecError, match="`alibi` positions work in self-attention, and no lay"):
        built(**FREE | {"position": "none"}, encoder=none)


@pytest.mark.parametrize(
    ("scheme", "rule", "told"),
    [
        ("rotary", {"self_attn": {"head_dim": 2}}, "head_dim = 4, but a layer has head_dim = 2"),
        ("alibi", {"n_heads": 1, "self_attn": {"head_dim": 4}}, "n_heads = 2, but a layer has n"),
    ],
)
def test_the_second_scheme_fits_the_heads_of_all_layers(scheme: str, rule: Any, told: str) -> None:
    """What one does not go by, the number of heads or their width, may differ."""
    base = FREE | {"position": "none", "n_heads": 2, "self_attn": {"head_dim": 4}}
    with pytest.raises(zoo.SpecError, match=f"are the same for all layers, and have {told}"):
        built(**base, encoder={"relative": scheme, "layers": [{"at": [0], **rule}]})
    other = {"rotary": {"n_heads": 1, "self_attn": {"head_dim": 4}}}
    rule = other.get(scheme, {"self_attn": {"head_dim": 6}})
    model = built(**base, encoder={"relative": scheme, "layers": [{"at": [0], **rule}]})
    assert model(vectors()).isfinite().all()


@pytest.mark.parametrize(
    ("stated", "places"),
    [
        (
            {"encoder": {"layers": [{"at": [0], "position": T5}, {"at": [1], "position": OTHER}]}},
            ["encoder.layers.0.position.kind", "encoder.layers.1.position.kind"],
        ),
        (
            {"position": T5, "encoder": {"layers": [{"at": [1], "position": OTHER}]}},
            ["position.kind", "encoder.layers.0.position.kind"],
        ),
        (
            {"position": T5, "encoder": {"relative": OTHER}},
            ["position.kind", "encoder.relative.kind"],
        ),
    ],
)
def test_two_tables_of_one_name_are_shown(stated: dict[str, Any], places: list[str]) -> None:
    with pytest.raises(zoo.SpecError, match="differ in `n_buckets` would share it") as caught:
        built(**FREE | {"position": "none", "n_layers": 3} | stated)
    (problem,) = caught.value.problems
    found = [problem.place, *(place for _, place in problem.related)]
    assert [str(place).split(": ")[1] for place in found] == places


@pytest.mark.parametrize("builder", ["encoder", "decoder"])
def test_a_second_scheme_is_added(builder: str) -> None:
    own = {builder: {"relative": {"kind": "t5_buckets", "n_buckets": 8, "max_distance": 6}}}
    model = built(builder, embedding="vectors", position="alibi", **own)
    causal = builder == "decoder"
    bias = t5_bias(getattr(model, builder).rel_bias.weight, causal=causal)
    expected = softmax(alibi(causal=False).log() + bias, causal=causal)
    for found in getattr(maps(model, vectors()), builder):
        torch.testing.assert_close(found[0], expected)


def test_a_second_scheme_that_rotates_leaves_the_bias_of_the_first() -> None:
    model = built(embedding="vectors", position="alibi", encoder={"relative": "rotary"})
    for found in maps(model, vectors()).encoder:
        torch.testing.assert_close(found[0], alibi(causal=False))


def test_a_second_scheme_is_not_added_to_the_embeddings() -> None:
    with pytest.raises(zoo.SpecError, match="`sinusoidal` positions are added to the embeddings"):
        built(embedding="vectors", position="alibi", encoder={"relative": "sinusoidal"})


def test_cross_attention_has_no_positions() -> None:
    model = built("encoder_decoder", position="t5_buckets")
    ids = torch.randint(VOCAB, (2, LENGTH))
    cross = maps(model, ids, ids).cross[0]
    torch.testing.assert_close(cross, torch.full_like(cross, 1 / LENGTH))
    tables = {name for name in model.spec.tensors if "rel_bias" in name}
    assert tables == {"encoder.rel_bias.weight", "decoder.rel_bias.weight"}


def test_a_table_in_every_layer() -> None:
    """UMT5: each layer has buckets of its own, for its sequence only, beside the stack's scheme."""
    block = {
        "kind": "residual",
        "self_position": {"kind": "t5_buckets", "n_buckets": 8, "max_distance": 6},
    }
    model = built("encoder_decoder", position="alibi", block=block)
    tables = {name for name in model.spec.tensors if "rel_bias" in name}
    assert tables == {
        f"{s}.layers.{i}.self_attn.rel_bias.weight" for s in ("encoder", "decoder") for i in (0, 1)
    }
    ids = torch.randint(VOCAB, (2, LENGTH))
    found = maps(model, ids, ids)
    for name in ("encoder", "decoder"):
        for layer, weights in zip(getattr(model, name).layers, getattr(found, name), strict=True):
            causal = name == "decoder"
            bias = t5_bias(layer.self_attn.rel_bias.weight, causal=causal)
            total = alibi(causal=False).log() + bias
            torch.testing.assert_close(weights[0], softmax(total, causal=causal))
    assert model.decoder.layers[0].self_attn.rel_bias.bidirectional is False
    assert model.encoder.layers[0].self_attn.rel_bias.bidirectional is True


def test_a_rotation_of_one_layer_alone() -> None:
    block = {"kind": "residual", "self_position": {"kind": "rotary", "base": 50.0}}
    model = built(**FREE, block=block)
    same(model, [(0, Layer(base=50.0)), (1, Layer(base=50.0))])


# --- which position a token has -------------------------------------------------------------------

IDS = torch.tensor([[5, 6, 0, 7], [0, 0, 8, 9]])
MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]).bool()


@pytest.mark.parametrize(
    ("count", "mask", "expected"),
    [
        ("all", MASK, [0, 1, 2, 3]),
        ("unpadded", MASK, [[0, 1, -1, 2], [-1, -1, 0, 1]]),
        ("unpadded", None, [[0, 1, -1, 2], [-1, -1, 0, 1]]),
        ("unmasked", MASK, [[0, 1, 2, -1], [-1, 0, 1, 2]]),
        ("unmasked", MASK[:, None].expand(-1, 4, -1), [0, 1, 2, 3]),
        ("unmasked", None, [0, 1, 2, 3]),
    ],
)
def test_positions_are_counted(count: str, mask: Any, expected: Any) -> None:
    model = zoo.build(spec(pad_id=0, encoder={"count_positions": count}))
    assert model.encoder.positions(IDS, mask).tolist() == expected


@pytest.mark.parametrize("count", ["unpadded", "unmasked"])
@pytest.mark.parametrize("position", [{"kind": "learned", "offset": 2, "max_length": 9}, "rotary"])
def test_padding_on_the_left_changes_nothing(count: str, position: Any) -> None:
    model = built(position=position, pad_id=0, encoder={"count_positions": count})
    ids = torch.tensor([[5, 6, 7]])
    padded = torch.tensor([[0, 0, 5, 6, 7]])
    mask = padded != 0
    torch.testing.assert_close(model(padded, source_mask=mask)[:, 2:], model(ids))


def test_padding_is_hidden() -> None:
    model = built(pad_id=0)
    padded = torch.tensor([[5, 6, 7, 0], [8, 9, 1, 2]])
    together = model(padded)
    torch.testing.assert_close(model(padded[:1, :3]), together[:1, :3])
    torch.testing.assert_close(model(padded[1:]), together[1:])


def test_padding_is_seen_if_the_spec_says_so() -> None:
    plain, seen = built(), built(pad_id=0, encoder={"padding": "seen"})
    seen.load_state_dict(plain.state_dict())
    ids, mask = torch.tensor([[5, 6, 0, 7]]), torch.tensor([[True, True, True, False]])
    torch.testing.assert_close(seen(ids), plain(ids))
    torch.testing.assert_close(seen(ids, source_mask=mask), plain(ids, source_mask=mask))


def test_a_mask_is_checked_before_anything_reads_it() -> None:
    model = zoo.build(spec(encoder={"count_positions": "unmasked"}))
    with pytest.raises(TypeError, match="a mask is boolean"):
        model(IDS, source_mask=torch.ones(2, 4))
    with pytest.raises(ValueError, match="does not fit"):
        model(IDS, source_mask=torch.ones(2, 3).bool())
