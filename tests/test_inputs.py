"""Inputs that a model refuses, and the error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from zoo_components.modules.stack_inputs import Inputs

SPEC = {
    "format": 1,
    "name": "small",
    "builder": "decoder",
    "vocab": 10,
    "n_layers": 1,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 8,
}
PAIRS = {
    **{key: value for key, value in SPEC.items() if key != "vocab"},
    "builder": "encoder_decoder",
    "source_vocab": 10,
    "target_vocab": 10,
}
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a list": (
        [[1, 2]],
        TypeError,
        r"a tensor, such as torch\.tensor\(\[\[5, 9, 33\]\]\), not a l",
    ),
    "one sequence": (torch.tensor([1, 2]), ValueError, r"not \(2,\); a single sequence is `ids\["),
    "a dimension too many": (torch.ones(1, 2, 3).long(), ValueError, r"length\), not \(1, 2, 3\)$"),
    "numbers": (torch.ones(1, 2), TypeError, r"int64\), not torch\.float32; `ids\.long\(\)`"),
    "truths": (torch.ones(1, 2) > 0, TypeError, r"int64\), not torch\.bool; `ids\.long\(\)` con"),
    "an id beyond": (torch.tensor([[1, 10]]), IndexError, r"to 9; the one at \[0, 1\] is 10"),
    "an id below": (torch.tensor([[1], [-1]]), IndexError, r"10 tokens.* one at \[1, 0\] is -1"),
    "a flat vector": (torch.ones(8), TypeError, r"int64\), not torch\.float32"),
}


@pytest.mark.parametrize(("inputs", "kind", "message"), BAD.values(), ids=BAD)
def test_inputs_that_are_none(inputs: Any, kind: type[Exception], message: str) -> None:
    model = zoo.build(SPEC)
    with pytest.raises(kind, match=message):
        model(inputs)


@pytest.mark.parametrize(
    ("embedding", "width"),
    [
        ("vectors", 8),
        ({"kind": "conv_frontend", "n_features": 5}, 5),
        ({"kind": "conv2d_frontend", "n_features": 5}, 5),
        ({"kind": "projected_vectors", "n_features": 5}, 5),
    ],
)
def test_vectors_that_are_none(embedding: Any, width: int) -> None:
    spec = {key: value for key, value in SPEC.items() if key != "vocab"}
    model = zoo.build({**spec, "builder": "encoder", "embedding": embedding, "head": "none"})
    assert model(torch.ones(2, 3, width)).shape[-1] == 8
    for shape in ((2, 3, width + 1), (3, 1), (1, 2, 3, width), (width,)):
        told = rf"vectors are \(batch, length, {width}\), not \({shape[0]}, "
        with pytest.raises(ValueError, match=told.removesuffix(" ")):
            model(torch.ones(shape))
    with pytest.raises(TypeError, match=r"takes vectors, floating-point numbers, not torch\.int64"):
        model(torch.ones(2, 3).long())


@pytest.mark.parametrize(("n_sources", "n_targets"), [(1, 3), (3, 1), (2, 3), (4, 2)])
def test_each_target_has_a_source_of_its_own(n_sources: int, n_targets: int) -> None:
    """Otherwise one source would silently be broadcast to all targets."""
    model = zoo.build(PAIRS)
    source, target = torch.ones(n_sources, 4).long(), torch.ones(n_targets, 3).long()
    told = f"{n_targets} target sequences need a memory of as many rows.* has {n_sources}$"
    with pytest.raises(ValueError, match=told):
        model(source, target)
    with pytest.raises(ValueError, match=told):
        model.decode(target, model.encode(source))


@pytest.mark.parametrize("shape", [(8,), (2, 8), (2, 3, 7), (1, 2, 3, 8)])
def test_a_memory_of_another_shape(shape: tuple[int, ...]) -> None:
    model = zoo.build({**SPEC, "memory_width": 8})
    with pytest.raises(ValueError, match=r"\(batch, memory length, 8\), not \(.*\)$"):
        model(torch.ones(2, 4).long(), torch.zeros(shape))


@pytest.mark.parametrize("shape", [(3, 4), (4,), (1, 3, 8)])
def test_a_target_of_numbers(shape: tuple[int, ...]) -> None:
    """Ids that were converted by mistake; the message is not about the source."""
    model = zoo.build(PAIRS)
    with pytest.raises(TypeError, match=r"^ids of tokens are integers.*, not torch\.float32"):
        model(torch.ones(3, 4).long(), torch.ones(shape))


def test_vectors_of_an_embedding_that_states_their_width_alone() -> None:
    """A component of a user that does not say `takes_ids = False`."""
    vectors = Inputs(takes_ids=True, width=8, image_shape=None, n_vectors=None)
    vectors.check(torch.ones(1, 2, 8))
    with pytest.raises(TypeError, match="ids of tokens are integers"):
        vectors._replace(width=None).check(torch.ones(1, 2, 8))


def test_one_target_alone() -> None:
    model = zoo.build(PAIRS)
    with pytest.raises(ValueError, match=r"length\), not \(3,\); a single sequence is `ids\["):
        model(torch.ones(1, 4).long(), torch.ones(3).long())


def test_what_is_taken() -> None:
    """Including 32-bit integers; and the checks do not prevent compiling the whole model."""
    model = zoo.build(SPEC).eval()
    ids = torch.tensor([[1, 9, 0]])
    torch.testing.assert_close(model(ids.int()), model(ids), rtol=0, atol=0)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids), model(ids), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [32, torch.int64, torch.float8_e4m3fn])
def test_a_dtype_that_is_none(dtype: Any, tmp_path: Path) -> None:
    zoo.save(zoo.build(SPEC), tmp_path)
    for made in (zoo.build, zoo.load):
        source: Any = SPEC if made is zoo.build else tmp_path
        with pytest.raises(TypeError, match=r"dtype is torch\.float64, .* or torch\.float16, not "):
            made(source, dtype=dtype)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_a_dtype_is_given_by_its_name_too(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    built, again = (zoo.build(SPEC, dtype=one) for one in (name, dtype))
    assert {tensor.dtype for tensor in built.parameters()} == {dtype}
    assert all(map(torch.equal, built.parameters(), again.parameters()))
    zoo.save(zoo.build(SPEC), tmp_path)
    loaded = zoo.load(tmp_path, dtype=name)
    assert all(map(torch.equal, loaded.parameters(), built.parameters()))
    found = zoo.TextModel.load(tmp_path, dtype=name).transformer
    assert {tensor.dtype for tensor in found.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("name", "meant"),
    {
        "bf16": "bfloat16",
        "torch.bfloat16": "bfloat16",
        "half": "float16",
        "fp32": "float32",
        "double": "float64",
    }.items(),
)
def test_the_nearest_dtype_is_told(name: str, meant: str, tmp_path: Path) -> None:
    told = rf"(?s)cannot have the dtype `{name}`.*did you mean `{meant}`\?"
    with pytest.raises(zoo.InputError, match=told):
        zoo.build(SPEC, dtype=name)
    zoo.save(zoo.build(SPEC), tmp_path)
    with pytest.raises(zoo.InputError, match=told):
        zoo.load(tmp_path, dtype=name)


@pytest.mark.parametrize("dtype", ["int8", torch.int8])
def test_weights_in_8_bits_are_no_dtype(dtype: str | torch.dtype, tmp_path: Path) -> None:
    zoo.save(zoo.build(SPEC), tmp_path)
    with pytest.raises(zoo.InputError, match=r"(?s)dtype `int8`.*`zoo\.quantize_weights\(model\)`"):
        zoo.load(tmp_path, dtype=dtype)


def test_public_names_are_offered() -> None:
    """In `help(zoo)` and in tab completion, also before they are imported."""
    assert set(zoo.__all__) <= set(dir(zoo))
    assert all(hasattr(zoo, name) for name in dir(zoo))
