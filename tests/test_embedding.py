"""The input of a stack, against a reference for one token at a time."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zoo
from zoo.layout import Layout
from zoo_components.embedding import NormedTokens, ProjectedVectors, TokenEmbedding, Vectors
from zoo_components.norm import LayerNorm, NoNorm
from zoo_components.position import Learned

VOCAB, D_MODEL, D_EMBED, LENGTH, PAD, MASK = 13, 6, 4, 5, 0, 12
FACTORISED = {"d_embed": D_EMBED}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_scale_that_is_rounded_to_the_dtype(dtype: torch.dtype) -> None:
    """As in Gemma: sqrt(3072) is 55.5 in bfloat16."""
    sizes = {"vocab": VOCAB, "d_model": 3072, "norm": NoNorm(kind="none", width=3072)}
    module = TokenEmbedding(kind="tokens", scale="sqrt_d_model_rounded", **sizes).build().to(dtype)
    ids = torch.arange(VOCAB)[None]
    factor = torch.tensor(3072**0.5, dtype=dtype)
    assert torch.equal(module(ids, torch.arange(VOCAB)), module.tokens(ids) * factor)


def described(
    *, normed: bool | Literal["before_positions"] = False, **fields: Any
) -> TokenEmbedding:
    sizes = {"vocab": VOCAB, "d_model": D_MODEL} | fields
    inner = sizes.get("d_embed", D_MODEL)
    if fields.get("projection") == "before_positions":
        inner = D_MODEL
    norm: Any = NoNorm(kind="none", width=inner)
    if normed:
        norm = LayerNorm(kind="layer_norm", width=inner)
    if normed == "before_positions":
        return NormedTokens(kind="normed_tokens", norm=norm, **sizes)
    return TokenEmbedding(kind="tokens", norm=norm, **sizes)


def built(description: Any, scheme: nn.Module | None = None) -> nn.Module:
    """Build in float64 with random tensors, and compare the layout with the module."""
    module = description.build(scheme).double()
    own = {name: t for name, t in module.named_parameters() if not name.startswith("positions.")}
    layout: Layout = description.layout()
    shapes = {name: tensor.shape for name, tensor in layout.tensors()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in own.items()}
    generator = torch.Generator().manual_seed(0)
    for tensor in own.values():
        tensor.data = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return module


def normed(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    if "norm.weight" not in w:
        return x
    centred = x - x.sum() / len(x)
    return (
        centred / ((centred @ centred) / len(x) + 1e-5).sqrt() * w["norm.weight"] + w["norm.bias"]
    )


def projected(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    return w["proj.weight"] @ x + w.get("proj.bias", torch.zeros(1))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": 0.3},
    "sqrt_d_model": {"scale": "sqrt_d_model"},
    "sqrt_d_model_rounded": {"scale": "sqrt_d_model_rounded"},
    "types": {"n_types": 3},
    "norm": {"normed": True},
    "norm before positions": {"normed": "before_positions", "n_types": 2, "scale": 2.0},
    "factorised": {**FACTORISED, "normed": True, "n_types": 2},
    "factorised, scaled": {**FACTORISED, "scale": "sqrt_d_model", "projection_bias": False},
    "projected first": {**FACTORISED, "projection": "before_positions", "n_types": 2, "scale": 2.0},
    "projected first, norm": {
        **FACTORISED,
        "projection": "before_positions",
        "normed": True,
        "projection_bias": False,
    },
    "projected to the same width": {"projection": "after_norm"},
    "zeroed": {"normed": True, "masked_tokens": "zeroed", "n_types": 2},
}


@pytest.mark.parametrize("with_types", [False, True])
@pytest.mark.parametrize("with_positions", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_tokens(name: str, with_positions: bool, with_types: bool) -> None:
    description = described(**CASES[name])
    if with_types and not description.n_types:
        with pytest.raises(ValueError, match="no token types"):
            built(description)(
                torch.ones(1, 2).long(), torch.arange(2), token_types=torch.ones(1, 2)
            )
        return
    scheme = None
    if with_positions:
        width = description.position_width
        scheme = Learned(kind="learned", d_model=D_MODEL, width=width, max_length=LENGTH).build()
        scheme.weight.data = torch.randn(LENGTH, width, dtype=torch.float64)
    module = built(description, scheme)
    w = dict(module.named_parameters())
    ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
    types = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 1, 0]]) if with_types else None
    positions = torch.tensor([[0, 1, 2, 3, 4], [4, 3, 0, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]]).bool()
    scale = math.sqrt(D_MODEL) if "sqrt" in str(description.scale) else description.scale

    def stated(sequence: int, token: int) -> Tensor:
        if description.masked_tokens == "zeroed" and not mask[sequence, token]:
            return torch.zeros(D_MODEL, dtype=torch.float64)
        x = w["tokens.weight"][ids[sequence, token]] * scale
        if description.projection == "before_positions":
            x = projected(x, w)
        if description.n_types:
            x = x + w["types.weight"][0 if types is None else types[sequence, token]]
        if isinstance(description, NormedTokens):
            x = normed(x, w)
        if with_positions:
            x = x + w["positions.weight"][positions[sequence, token]]
        if not isinstance(description, NormedTokens):
            x = normed(x, w)
        return projected(x, w) if description.projection == "after_norm" else x

    expected = torch.stack([torch.stack([stated(b, t) for t in range(LENGTH)]) for b in range(2)])
    found = module(ids, positions, token_types=types, mask=mask)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(expected)
    tensors = list(w.values())
    ours, theirs = (torch.autograd.grad((y * weights).sum(), tensors) for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_masked_tokens_are_kept_unless_zeroed() -> None:
    module = built(described())
    ids, mask = torch.tensor([[3, 1]]), torch.tensor([[True, False]])
    assert torch.equal(module(ids, torch.arange(2), mask=mask), module(ids, torch.arange(2)))


@pytest.mark.parametrize("hidden", [0, 2])
def test_token_dropout(hidden: int) -> None:
    """Rao et al.'s code for ESM: embeddings of masks are 0, the others rescaled by the share."""
    module = built(described(token_dropout=0.12, mask_id=MASK, scale=2.0))
    ids = torch.tensor([[3, MASK, 4, 1, MASK], [9, 2, 6, 5, 7], [MASK] * 5])
    mask = None
    n_tokens = LENGTH - hidden
    if hidden:
        mask = torch.arange(LENGTH).expand(3, -1) < n_tokens
        ids[:, n_tokens:] = PAD
    found = module(ids, torch.arange(LENGTH), mask=mask)
    table = module.tokens.weight
    for sequence in range(3):
        n_masks = int((ids[sequence] == MASK).sum())
        for token in range(n_tokens):
            expected = torch.zeros(D_MODEL).double()
            if ids[sequence, token] != MASK:
                factor = (1 - 0.12) / (1 - n_masks / n_tokens)
                expected = table[ids[sequence, token]] * 2.0 * factor
            torch.testing.assert_close(found[sequence, token], expected, rtol=0, atol=1e-12)


def test_token_dropout_counts_no_mask_tokens_that_are_hidden() -> None:
    fields = {"token_dropout": 0.1, "mask_id": MASK}
    model = zoo.build(spec(**fields) | {"head": "none"}).double().eval()
    ids, hidden = torch.tensor([[5, 6, MASK, 7]]), torch.tensor([[5, 6, MASK, 7, MASK]])
    seen = torch.tensor([[True, True, True, True, False]])
    found = model(hidden, source_mask=seen)[:, :4]
    torch.testing.assert_close(found, model(ids), rtol=0, atol=1e-12)


def test_token_dropout_of_nothing_but_padding() -> None:
    module = built(described(token_dropout=0.12, mask_id=MASK))
    ids, hidden = torch.full((1, LENGTH), PAD), torch.zeros(1, LENGTH, dtype=torch.bool)
    assert module(ids, torch.arange(LENGTH), mask=hidden).isfinite().all()


def test_token_dropout_in_half_precision_rounds_once() -> None:
    module = built(described(token_dropout=0.12, mask_id=MASK)).bfloat16()
    ids = torch.tensor([[MASK, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    table = module.tokens.weight.double()
    for row, n_masks in enumerate([1, 0]):
        exact = table[ids[row]] * (1 - 0.12) / (1 - n_masks / LENGTH)
        exact[ids[row] == MASK] = 0.0
        found = module(ids[row : row + 1], torch.arange(LENGTH))[0]
        assert torch.equal(found, exact.bfloat16())


def test_dropout_comes_last_and_only_in_training() -> None:
    module = built(described(dropout=0.5, normed=True))
    ids = torch.randint(VOCAB, (20, LENGTH))
    module.eval()
    full = module(ids, torch.arange(LENGTH))
    dropped = module.train()(ids, torch.arange(LENGTH))
    kept = dropped != 0
    assert 0.4 < kept.double().mean() < 0.6
    torch.testing.assert_close(dropped[kept], 2 * full[kept])


def test_vectors() -> None:
    scheme = Learned(kind="learned", d_model=D_MODEL, max_length=LENGTH).build().double()
    nn.init.normal_(scheme.weight)
    module = Vectors(kind="vectors", d_model=D_MODEL).build(scheme)
    x = torch.randn(2, LENGTH, D_MODEL).double()
    assert torch.equal(module(x, torch.arange(LENGTH)), x + scheme.weight)
    assert torch.equal(Vectors(kind="vectors", d_model=D_MODEL).build()(x, torch.arange(LENGTH)), x)
    with pytest.raises(ValueError, match="no token types"):
        module(x, torch.arange(LENGTH), token_types=torch.zeros(2, LENGTH))


def test_projected_vectors() -> None:
    norm = LayerNorm(kind="layer_norm", width=5, eps=0.1)
    embedding = ProjectedVectors(kind="projected_vectors", d_model=D_MODEL, n_features=5, norm=norm)
    scheme = Learned(kind="learned", d_model=D_MODEL, max_length=LENGTH).build()
    module = embedding.build(scheme).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, LENGTH, 5).double()
    normed = F.layer_norm(x, (5,), module.norm.weight, module.norm.bias, 0.1)
    expected = normed @ module.projection.weight.T + module.projection.bias + scheme.weight
    found = module(x, torch.arange(LENGTH))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# --- specs ----------------------------------------------------------------------------------------


def spec(**embedding: Any) -> dict[str, Any]:
    common = {"format": 1, "name": "m", "builder": "encoder", "vocab": VOCAB, "n_layers": 1}
    common |= {"d_model": 8, "n_heads": 2, "d_ff": 4, "max_length": 7, "position": "learned"}
    return {**common, "embedding": {"kind": "tokens", **embedding}}


@pytest.mark.parametrize(
    ("projection", "width"), [("before_positions", 8), ("after_norm", 4), (None, 4)]
)
def test_the_stack_gives_positions_their_width(projection: str | None, width: int) -> None:
    stated = {} if projection is None else {"projection": projection}
    read = zoo.read_spec(spec(d_embed=4, n_types=2, norm="layer_norm", **stated))
    names = ("positions.weight", "types.weight", "norm.weight")
    assert [read.tensors[f"encoder.embed.{name}"].shape[-1] for name in names] == [width] * 3
    assert read.tensors["encoder.embed.tokens.weight"].shape == (VOCAB, 4)
    output = zoo.build(read)(torch.ones(1, 3).long())
    assert output.shape == (1, 3, VOCAB)
    assert zoo.read_spec(read.to_toml()) == read


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        ({"d_embed": 4, "projection": "none"}, "d_embed = 4 need a projection to d_model = 8"),
        ({"projection_bias": True}, "goes with `projection"),
        ({"token_dropout": 0.1}, "`token_dropout` and `mask_id` go together"),
        ({"mask_id": 3}, "`token_dropout` and `mask_id` go together"),
        ({"token_dropout": 0.1, "mask_id": VOCAB}, "beyond the vocabulary"),
        ({"n_types": -1}, "n_types"),
    ],
)
def test_contradictions(embedding: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(spec(**embedding))


def test_tokens_need_a_vocabulary() -> None:
    data = spec()
    del data["vocab"]
    with pytest.raises(zoo.SpecError, match="the key `vocab` is missing"):
        zoo.read_spec(data)


def test_token_types_reach_the_embedding() -> None:
    model = zoo.build(spec(n_types=2)).eval()
    ids, types = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 1, 1]])
    states = model.encode(ids, token_types=types)
    embed = model.encoder.embed
    with torch.no_grad():
        embed.types.weight[1] = embed.types.weight[0]
    assert not torch.allclose(model.encode(ids, token_types=types), states)
    torch.testing.assert_close(model.encode(ids, token_types=types), model.encode(ids))
    with pytest.raises(ValueError, match="no token types"):
        zoo.build(spec())(ids, token_types=types)


@pytest.mark.parametrize(
    ("types", "kind", "message"),
    [
        (
            torch.tensor([[0, 1, 2]]),
            IndexError,
            r"2 token types, .* to 1; the one at \[0, 2\] is 2",
        ),
        (torch.tensor([[0, -1, 0]]), IndexError, r"the one at \[0, 1\] is -1"),
        (torch.zeros(1, 3), TypeError, r"not torch\.float32; `token_types\.long\(\)` converts"),
        (torch.zeros(1, 2).long(), ValueError, r"shape \(1, 2\) does not fit: .* = \(1, 3\)"),
        (torch.zeros(2, 3).long(), ValueError, r"shape \(2, 3\) does not fit: .* = \(1, 3\)"),
    ],
)
def test_token_types_that_are_none(
    types: torch.Tensor, kind: type[Exception], message: str
) -> None:
    model = zoo.build(spec(n_types=2)).eval()
    with pytest.raises(kind, match=message):
        model.encode(torch.tensor([[1, 2, 3]]), token_types=types)
