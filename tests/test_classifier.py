"""Classification of tokens and sequences, against single sequences and transformers."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from references.heads import D_MODEL, N_CLASSES, built, linear, same, states
from torch import Tensor, nn
from transformers import BertConfig, RobertaConfig
from transformers.models.bert.modeling_bert import BertPooler
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

from zoo_components.classifier import (
    Classifier,
    Pooler,
    Pooling,
    ProjectedClassifier,
    Span,
    TokenClassifier,
)
from zoo_components.modules.classifier import pool
from zoo_components.norm import LayerNorm, NoNorm
from zoo_components.sentence import SentenceEmbedding

NONE = NoNorm(kind="none", width=D_MODEL)
MASKS: dict[str, Tensor | None] = {
    "none": None,
    "right": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool(),
    "left": torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 1], [1, 0, 0, 0, 0]]).bool(),
    "broadcast": torch.tensor([[1, 1, 0, 1, 0]]).bool(),
}


def pooled(x: Tensor, pooling: str, mask: Tensor | None) -> Tensor:
    """One sequence at a time; x (batch, length, d_model)."""
    vectors = []
    for number, sequence in enumerate(x):
        there = [True] * len(sequence)
        if mask is not None:
            there = mask[min(number, len(mask) - 1)].tolist()
        tokens = [state for state, is_there in zip(sequence, there, strict=True) if is_there]
        if pooling == "first":
            vectors.append(sequence[0])
        elif pooling == "first_two":
            vectors.append((sequence[0] + sequence[1]) / 2)
        elif pooling == "mean_after_first":
            after = zip(sequence[1:], there[1:], strict=True)
            later = [state for state, is_there in after if is_there]
            vectors.append(of_all(later, "mean", there[1:], x))
        elif pooling == "last":
            vectors.append(tokens[-1] if tokens else sequence[0])
        else:
            vectors.append(of_all(tokens, pooling, there, x))
    return torch.stack(vectors)


def of_all(tokens: list[Tensor], pooling: str, there: list[bool], x: Tensor) -> Tensor:
    """Pool over all tokens except padding."""
    zero = torch.zeros(x.shape[-1], dtype=x.dtype)
    if pooling == "max":
        return torch.stack(tokens).max(0).values if tokens else zero
    places = [place for place, is_there in enumerate(there, start=1) if is_there]
    weights = places if pooling == "weighted_mean" else [1] * len(places)
    total = sum((w * token for w, token in zip(weights, tokens, strict=True)), zero)
    over = max(1, sum(weights))
    return total / (over**0.5 if pooling == "mean_sqrt" else over)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_classifier(pooling: str, mask: str) -> None:
    description = Classifier(
        kind="classifier", d_model=D_MODEL, n_classes=N_CLASSES, pooling=pooling, norm=NONE
    )
    module, x = built(description), states(3, 5)
    w = module.state_dict(keep_vars=True)
    hidden = torch.tanh(linear(w, "dense", pooled(x, pooling, MASKS[mask])))
    same(module(x, mask=MASKS[mask]), linear(w, "out", hidden), module, x)


@pytest.mark.parametrize("mask", MASKS)
def test_projected_classifier(mask: str) -> None:
    description = ProjectedClassifier(
        kind="projected_classifier", d_model=D_MODEL, n_classes=N_CLASSES, d_hidden=3
    )
    module, x = built(description), states(3, 5)
    w = module.state_dict(keep_vars=True)
    hidden = pooled(linear(w, "dense", x), "mean", MASKS[mask])
    same(module(x, mask=MASKS[mask]), linear(w, "out", hidden), module, x)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"bias": False},
        {"dense": "relu", "dense_bias": False},
        {"dense": "gelu", "norm": LayerNorm(kind="layer_norm", width=D_MODEL, bias=False)},
    ],
)
def test_token_classifier(fields: dict[str, Any]) -> None:
    description = TokenClassifier(
        kind="token_classifier", d_model=D_MODEL, n_classes=N_CLASSES, **{"norm": NONE} | fields
    )
    module, x = built(description), states(2, 5)
    w = module.state_dict(keep_vars=True)
    y = x
    if "dense" in fields:
        activation = {"relu": torch.relu, "gelu": nn.functional.gelu}[fields["dense"]]
        y = activation(linear(w, "dense", y))
    if "norm" in fields:
        y = nn.functional.layer_norm(y, (D_MODEL,), w["norm.weight"], eps=1e-5)
    same(module(x), linear(w, "out", y), module, x)


def test_a_span_has_two_scores_for_each_token() -> None:
    module, x = built(Span(kind="span", d_model=D_MODEL, norm=NONE)), states(2, 5)
    w = module.state_dict(keep_vars=True)
    assert module(x).shape == (2, 5, 2)
    same(module(x), linear(w, "out", x), module, x)
    with pytest.raises(ValidationError, match="n_classes"):
        Span(kind="span", d_model=D_MODEL, norm=NONE, n_classes=3)  # type: ignore[arg-type]


def test_classifier_of_roberta() -> None:
    config = RobertaConfig(hidden_size=D_MODEL, num_labels=N_CLASSES, num_attention_heads=2)
    theirs = RobertaClassificationHead(config).double().eval()
    ours = built(Classifier(kind="classifier", d_model=D_MODEL, n_classes=N_CLASSES, norm=NONE))
    tensors = ours.state_dict()
    theirs.load_state_dict({n.replace("out.", "out_proj."): t for n, t in tensors.items()})
    x = states(2, 5)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)


def test_pooler_of_bert() -> None:
    theirs = BertPooler(BertConfig(hidden_size=D_MODEL, num_attention_heads=2)).double()
    ours = built(Pooler(kind="pooler", d_model=D_MODEL))
    theirs.load_state_dict({f"dense.{name}": t for name, t in ours.state_dict().items()})
    x = states(2, 5)
    same(
        ours(x),
        torch.tanh(linear({f"p.{n}": t for n, t in ours.named_parameters()}, "p", x[:, 0])),
        ours,
        x,
    )
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)


def test_pooler_of_the_last_token() -> None:
    ours = built(Pooler(kind="pooler", d_model=D_MODEL, pooling="last", activation="relu"))
    x, mask = states(3, 5), MASKS["right"]
    expected = torch.relu(pooled(x, "last", mask) @ ours.weight.T + ours.bias)
    torch.testing.assert_close(ours(x, mask=mask), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cls", [Classifier, TokenClassifier])
def test_dropout_is_right_before_the_output(cls: type[TokenClassifier]) -> None:
    description = cls(
        kind="x", d_model=D_MODEL, n_classes=4000, dropout=0.5, norm=NONE, dense="relu", bias=False
    )
    module = built(description).train()
    x = states(1, 1)
    hidden = torch.relu(module.dense(x))[0, 0]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        output = module(x).flatten()
        torch.manual_seed(0)
        kept = nn.functional.dropout(hidden, 0.5)
    torch.testing.assert_close(output, module.out.weight @ kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_pooling_in_half_precision_rounds_once(pooling: str, dtype: torch.dtype) -> None:
    """The sum of these states exceeds the range of float16."""
    x = torch.linspace(500, 501, 301 * D_MODEL).view(1, 301, D_MODEL).to(dtype)
    exact = pooled(x.double(), pooling, None)
    assert torch.equal(pool(x, pooling, None), exact.to(dtype))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_sentence_embedding(pooling: str, mask: str) -> None:
    description = SentenceEmbedding(
        kind="sentence", d_model=D_MODEL, pooling=pooling, d_out=3, activation="tanh"
    )
    module, x = built(description), states(3, 5)
    w = module.state_dict(keep_vars=True)
    vectors = torch.tanh(linear(w, "dense", pooled(x, pooling, MASKS[mask])))
    lengths = vectors.square().sum(-1, keepdim=True).sqrt()
    same(module(x, mask=MASKS[mask]), vectors / lengths, module, x)


@pytest.mark.parametrize("bias", [True, False])
def test_sentence_embedding_with_a_wide_map_before_the_dense_layer(bias: bool) -> None:
    description = SentenceEmbedding(
        kind="sentence", d_model=D_MODEL, d_hidden=7, d_out=3, dense_bias=bias, normalize=False
    )
    module, x = built(description), states(3, 5)
    w = module.state_dict(keep_vars=True)
    assert {name.partition(".")[0] for name in w} == {"hidden", "dense"}
    vectors = linear(w, "dense", linear(w, "hidden", x.mean(-2)))
    same(module(x), vectors, module, x)


def test_sentence_embedding_is_the_pooled_vector_without_more() -> None:
    module = built(SentenceEmbedding(kind="sentence", d_model=D_MODEL, normalize=False))
    x = states(2, 5)
    assert not list(module.parameters())
    torch.testing.assert_close(module(x), x.mean(-2))
