"""Whole published models against those of transformers with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from references.published import FF, D, H, N, Published, V
from references.published_decoders import DECODERS
from references.published_encoders import ENCODERS
from references.published_pairs import PAIRS
from torch import Tensor, nn

import zoo
from zoo.transformer import Transformer
from zoo.weights.held_tensors import stored

MODELS = ENCODERS | PAIRS | DECODERS
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}
LENGTH, HIDDEN = 9, 3


def theirs(published: Published) -> nn.Module:
    """Return their model with random values in all tensors, including buffers and padding rows."""
    config = getattr(transformers, published.config_class)(**published.config)
    config._attn_implementation = "eager"
    model = getattr(transformers, published.model)(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and not name.startswith(published.left):
                noise = 0.2 * torch.randn(tensor.shape, generator=generator)
                tensor.copy_(noise + (1.0 if "norm" in name.lower() and "weight" in name else 0.0))
    return model


def ours(published: Published, other: nn.Module) -> Transformer:
    """Return our model with their tensors; fails unless each of theirs has a place."""
    sizes = {"format": 1, "name": "m", "d_model": D, "n_layers": N, "n_heads": H, "d_ff": FF}
    vocab = {"source_vocab": V, "target_vocab": V}
    if published.inputs == "features":
        vocab = {"target_vocab": V}
    elif published.spec["builder"] != "encoder_decoder":
        vocab = {"vocab": V}
    data = {k: v for k, v in {**sizes, **vocab, **published.spec}.items() if v is not None}
    model = zoo.build(data).eval()
    tensors = dict(other.state_dict())
    mapped = {name: published.renamed(name) for name in model.spec.tensors}
    storage = {tensors[name].data_ptr() for name in mapped.values()}
    left = {
        name
        for name, tensor in tensors.items()
        if tensor.data_ptr() not in storage and not name.startswith(published.left)
    }
    assert not {name for name in left if "position_ids" not in name}
    with torch.no_grad():
        for name, tensor in stored(model).items():
            tensor.copy_(tensors[mapped[name]].view(tensor.shape))
    return model


def ids(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, V, (2, LENGTH), generator=generator)


def padded(published: Published, side: str) -> tuple[Tensor, Tensor]:
    """Return ids and a mask, with padding in the second sequence."""
    tokens, mask = ids(1), torch.ones(2, LENGTH, dtype=torch.bool)
    hidden = {"left": slice(HIDDEN), "right": slice(-HIDDEN, None), "inside": slice(3, 5)}[side]
    mask[1, hidden] = False
    return tokens.masked_fill(~mask, published.pad_id), mask


def arguments(published: Published, tokens: Tensor, mask: Tensor | None) -> tuple[Any, Any]:
    """Return the arguments of theirs, as keywords, and of ours, as positions and keywords."""
    types = torch.arange(LENGTH).expand(2, -1) % 2 if published.token_types else None
    them: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask}
    kind = published.spec["builder"]
    positional: tuple[Tensor, ...] = (tokens,)
    keywords: dict[str, Any] = {f"{'target' if kind == 'decoder' else 'source'}_mask": mask}
    if types is not None:
        them["token_type_ids"] = keywords["token_types"] = types
    if kind == "encoder_decoder":
        target = ids(2)[:, :6]
        if published.inputs == "features":
            features = torch.randn(2, 24, 6, generator=torch.Generator().manual_seed(3))
            them = {"input_features": features.transpose(1, 2)}
            positional, keywords = (features, target), {}
        else:
            positional = (tokens, target)
        them["decoder_input_ids"] = target
    return {k: v for k, v in them.items() if v is not None}, (positional, keywords)


def logits(output: Any) -> Tensor:
    found: Tensor = output.prediction_logits if "prediction_logits" in output else output.logits
    return found


def names_and_sides() -> list[tuple[str, str | None]]:
    return [(name, side) for name, p in MODELS.items() for side in (None, *p.pads)]


@pytest.mark.parametrize(("name", "side"), names_and_sides())
def test_logits(name: str, side: str | None) -> None:
    published = MODELS[name]
    other = theirs(published)
    model = ours(published, other)
    tokens, mask = (ids(1), None) if side is None else padded(published, side)
    if "mask_id" in str(published.spec.get("embedding")):
        tokens[0, 2:4] = published.spec["embedding"]["mask_id"]
    them, (positional, keywords) = arguments(published, tokens, mask)
    with torch.no_grad():
        expected, found = logits(other(**them)), model(*positional, **keywords)
    if mask is not None and found.shape[1] == LENGTH and not published.within:
        expected, found = expected[mask], found[mask]
    assert expected.std() > 0.05
    torch.testing.assert_close(found, expected, **TOLERANCE)


def test_pooler_and_next_sentence_of_bert() -> None:
    published = MODELS["bert"]
    other = theirs(published)
    model = ours(published, other)
    them, (positional, keywords) = arguments(published, ids(1), None)
    with torch.no_grad():
        expected = other(**them).seq_relationship_logits
        found = model.nsp(model.pooler(model.encode(*positional, **keywords)))
    torch.testing.assert_close(found, expected, **TOLERANCE)


@pytest.mark.parametrize("name", ["albert", "albert, layers in groups"])
def test_shared_layers_in_float64(name: str) -> None:
    published = MODELS[name]
    other = theirs(published)
    model = ours(published, other).double()
    them, (positional, keywords) = arguments(published, ids(1), None)
    with torch.no_grad():
        expected, found = other.double()(**them).logits, model(*positional, **keywords)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("side", [None, "right"])
def test_global_tokens_of_longformer(side: str | None) -> None:
    published = MODELS["longformer"]
    other = theirs(published)
    model = ours(published, other)
    tokens, mask = (ids(1), torch.ones(2, LENGTH).bool()) if not side else padded(published, side)
    marked = torch.zeros(2, LENGTH, dtype=torch.bool)
    marked[0, 0] = marked[1, [0, 2]] = True  # a different number in each sequence
    with torch.no_grad():
        found = model(tokens, source_mask=mask, global_tokens=marked)
        without = model(tokens, source_mask=mask)
        given = {"attention_mask": mask.long(), "global_attention_mask": marked.long()}
        expected = logits(other(tokens, **given))
    torch.testing.assert_close(found[mask], expected[mask], **TOLERANCE)
    assert (found - without)[mask].abs().max() > 0.1
