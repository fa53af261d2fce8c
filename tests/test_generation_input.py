"""The arguments of generation are checked before it starts; each mistake is a clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from zoo.errors import InputError, WeightsError
from zoo.generation.prompts import check_length, read_ids
from zoo.transformer import Transformer

SIZES = {"format": 1, "name": "m", "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
LEARNED = {"position": {"kind": "learned", "max_length": 10}}


@pytest.fixture(scope="module")
def decoder() -> Transformer:
    return zoo.build({**SIZES, **LEARNED, "builder": "decoder", "vocab": 9})


@pytest.fixture(scope="module")
def pair() -> Transformer:
    vocab = {"source_vocab": 9, "target_vocab": 7}
    return zoo.build({**SIZES, **LEARNED, "builder": "encoder_decoder", **vocab})


@pytest.fixture(scope="module")
def captioner() -> Transformer:
    encoder = {"embedding": {"kind": "patches", "image_size": 6, "patch_size": 2}}
    pair = {**SIZES, **LEARNED, "builder": "encoder_decoder", "target_vocab": 7}
    return zoo.build({**pair, "encoder": encoder})


def told(model: Transformer, ids: Any, **options: Any) -> str:
    """Return the message of the error; the model must not have been run."""
    ran: list[int] = []
    hooks = [module.register_forward_hook(lambda *_: ran.append(1)) for module in model.modules()]
    for make in (zoo.generate, zoo.stream):
        with pytest.raises(InputError) as error:
            make(model, ids, **{"max_new_tokens": 3} | options)
    for hook in hooks:
        hook.remove()
    assert not ran
    return str(error.value)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def with_number(value: float) -> torch.Tensor:
    """Two images, the second of which holds this number."""
    images = torch.ones(2, 3, 6, 6, dtype=torch.float64)
    images[1, 2, 5, 0] = value
    return images


META = "ids: a tensor on the device `meta` has no values"
SPARSE = "ids: the tensor must be dense, not torch.sparse_coo"


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([], {}, "an empty batch"),
        (torch.zeros(0, 3, dtype=torch.long), {}, "an empty batch"),
        ([[1], []], {}, "sequence 1 is empty"),
        (torch.zeros(2, 0, dtype=torch.long), {}, "sequence 0 is empty"),
        ([[1, 9]], {}, "id 9 is outside the vocabulary"),
        ([1, 2**63], {}, "id 9223372036854775808 is outside the vocabulary"),
        ([[1], [-(2**70)]], {}, "id -1180591620717411303424 is outside the vocabulary"),
        ([[1], [-1]], {}, "id -1 in sequence 1 is outside the vocabulary"),
        ([[1, 2.5]], {}, "a list of integers"),
        ([["a"]], {}, "a list of integers"),
        ([[1, None]], {}, "a list of integers"),
        (5, {}, "a list of integers, not 5"),
        (None, {}, "a list of integers, not None"),
        (np.array(5), {}, "a list of integers"),
        (np.array([[0.5]]), {}, "a list of integers"),
        ([1], {"eos": None}, "which are integers, not None"),
        ([[[1]]], {}, "a list of integers"),
        ("text", {}, "a list of integers, not 'text'"),
        (["text"], {}, "help: `zoo.TextModel.load(...)` makes a model that takes texts"),
        (torch.ones(1, 2), {}, "ids are integers, not torch.float32"),
        (torch.ones(1, 1, 2, dtype=torch.long), {}, "ids are (length,) or (batch, length)"),
        (torch.tensor(1), {}, "ids are (length,) or (batch, length)"),
        ([[1]], {"mask": ones(1, 1)}, "a mask goes with a tensor of ids"),
        (torch.tensor([[1, 2]]), {"mask": torch.ones(1, 2)}, "boolean tensor, True = a token"),
        (torch.tensor([[1, 2]]), {"mask": torch.ones(1, 2)}, "help: `mask != 0` is one"),
        (torch.tensor([[1, 2]]), {"mask": [[True, True]]}, "boolean tensor, True = a token"),
        (torch.tensor([[1, 2]]), {"mask": np.ones((1, 2))}, "`torch.as_tensor(mask) != 0` is one"),
        (torch.tensor([[1, 2]]), {"mask": ones(2, 1)}, "the mask is (2, 1); it must be (1, 2)"),
        (torch.tensor([[1, 2]]), {"mask": ~ones(1, 2)}, "sequence 0 is empty"),
        ([1] * 9, {}, "9 tokens and 3 new ones are longer than the model's 10 positions"),
        ([1] * 9, {}, "`max_new_tokens` can be 2 at most"),
        ([1], {"max_new_tokens": 0}, "`max_new_tokens` is an integer of at least 1, not 0"),
        ([1], {"max_new_tokens": 2.0}, "`max_new_tokens` is an integer of at least 1, not 2.0"),
        ([1], {"max_new_tokens": 2**62 + 1}, "`max_new_tokens` is at most 4,611,686,018,427,387,9"),
        ([1], {"eos": 9}, "`eos` holds the id 9, which is outside the vocabulary"),
        ([1], {"eos": -1}, "`eos` holds the id -1, which is outside the vocabulary"),
        ([1], {"eos": ["2"]}, "integers, not '2'"),
        ([1], {"eos": True}, "integers, not True"),
        ([1], {"eos": np.int64(9)}, "`eos` holds the id 9, which is outside the vocabulary"),
        (torch.ones(1, 2, dtype=torch.long, device="meta"), {}, META),
        ([torch.ones(2, dtype=torch.long, device="meta")], {}, META),
        (torch.eye(3, dtype=torch.long).to_sparse(), {}, SPARSE),
        (torch.eye(3, dtype=torch.long).to_sparse_csr(), {}, "must be dense, not torch.sparse_csr"),
        ([torch.tensor([1, 2]).to_sparse()], {}, SPARSE),
        (torch.tensor([[1, 2]]), {"mask": ones(1, 2).to_sparse()}, SPARSE),
        ([[1, True]], {}, "a list of integers, not [1, True]"),
        ([True, 1], {}, "a list of integers, not [True, 1]"),
        ([1], {"eos": torch.tensor(2)}, "integers, not tensor(2)"),
        ([1], {"stop": [[1, 70]]}, "`stop` holds the id 70, which is outside the vocabulary"),
        ([1], {"stop": [[]]}, "an empty sequence"),
        ([1], {"stop": None}, "`stop` is a list of sequences of ids, not None"),
        ([1], {"stop": 3}, "`stop` is a list of sequences of ids, not 3"),
        ([1], {"stop": torch.tensor(3)}, "`stop` is a list of sequences of ids, not tensor(3)"),
        ([1], {"start": 1}, "`start` is for models with an encoder"),
        ([1], {"memory": torch.ones(1, 2, 8)}, "attends to no memory"),
        ([1], {"memory_mask": ones(1, 2)}, "hides parts of a `memory`, and there is none"),
    ],
)
def test_of_a_decoder(
    decoder: Transformer, ids: Any, options: dict[str, Any], message: str
) -> None:
    assert message in told(decoder, ids, **options)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([1], {}, "state the ids that each target begins with"),
        ([8], {"start": 7}, "start: id 7 is outside the vocabulary"),
        ([9], {"start": 6}, "ids: id 9 is outside the vocabulary"),
        ([1], {"start": []}, "start: sequence 0 is empty"),
        ([1], {"start": 1.0}, "start: a sequence is a list of integers, not [1.0]"),
        ([1], {"start": np.int64(7)}, "start: id 7 is outside the vocabulary"),
        ([1], {"start": torch.tensor(7)}, "start: id 7 is outside the vocabulary"),
        ([1] * 11, {"start": 1}, "11 tokens are longer than the model's 10 positions"),
        ([1], {"start": 1, "max_new_tokens": 11}, "1 tokens and 11 new ones are longer"),
    ],
)
def test_of_a_pair(pair: Transformer, ids: Any, options: dict[str, Any], message: str) -> None:
    assert message in told(pair, ids, **options)


IMAGES = torch.ones(2, 3, 6, 6)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (IMAGES, {}, "state the ids that each target begins with"),
        (IMAGES, {"start": 7}, "start: id 7 in sequence 0 is outside the vocabulary"),
        (IMAGES, {"start": 1, "max_new_tokens": 11}, "1 tokens and 11 new ones are longer"),
        (IMAGES, {"start": 1, "memory": torch.ones(2, 3, 8)}, "attends to no memory"),
        (
            IMAGES,
            {"start": 1, "method": zoo.Greedy(encoder_no_repeat_ngram_size=2)},
            "`encoder_no_repeat_ngram_size` is for sources of tokens",
        ),
        (IMAGES, {"start": 1, "mask": ones(2, 9)}, "ids: images have no padding"),
        ([1, 2], {"start": 1}, "ids: this model takes a tensor of images, (batch, 3, 6, 6), not a"),
        ([*IMAGES], {"start": 1}, "not a list; `torch.stack` makes one of several"),
        (None, {"start": 1}, "(batch, 3, 6, 6), not a NoneType"),
        (IMAGES.numpy(), {"start": 1}, "(batch, 3, 6, 6), not a ndarray"),
        (IMAGES.byte(), {"start": 1}, "not torch.uint8: scale the pixels as they were in training"),
        (
            torch.tensor([[1, 2]]),
            {"start": 1},
            "floating-point numbers (batch, 3, 6, 6), not torch",
        ),
        (torch.ones(2, 9, 8), {"start": 1}, "(batch, 3, 6, 6), not (2, 9, 8)"),
        (IMAGES[:, :1], {"start": 1}, "(batch, 3, 6, 6), not (2, 1, 6, 6)"),
        (IMAGES.movedim(1, 3), {"start": 1}, "channels come first: `images.movedim(-1, -3)`"),
        (IMAGES[0].movedim(0, 2), {"start": 1}, "come first: `images.movedim(-1, -3)`"),
        (torch.ones(2, 3, 8, 6), {"start": 1}, "resize the images to 6 x 6 pixels"),
        (torch.ones(3, 8, 8), {"start": 1}, "not (3, 8, 8); resize the images to 6 x 6 pixels"),
        (IMAGES[None], {"start": 1}, "not (1, 2, 3, 6, 6)"),
        (IMAGES[:0], {"start": 1}, "ids: an empty batch, (0, 3, 6, 6)"),
        (IMAGES.to_sparse(), {"start": 1}, SPARSE),
        (with_number(torch.nan), {"start": 1}, "image 1 holds numbers that are not finite"),
        (with_number(torch.inf), {"start": 1}, "image 1 holds numbers that are not finite"),
        (with_number(1e300), {"start": 1}, "that are not finite in torch.float32"),
        (with_number(torch.nan)[1], {"start": 1}, "image 0 holds numbers that are not finite"),
    ],
)
def test_of_images(
    captioner: Transformer, images: Any, options: dict[str, Any], message: str
) -> None:
    assert message in told(captioner, images, **options)


def test_of_the_method(decoder: Transformer) -> None:
    assert "zoo.Greedy(...), zoo.Sampling(...)" in told(decoder, [1], method="beam")
    with pytest.raises(InputError, match=r"zoo\.Sampling\(\.\.\.\), not Beam"):
        zoo.stream(decoder, [1], max_new_tokens=2, method=zoo.Beam())  # type: ignore[arg-type]


def test_of_a_model_without_values() -> None:
    model = zoo.build({**SIZES, "builder": "decoder", "vocab": 9}, device="meta")
    assert "m is on the device `meta`" in told(model, [1])


@pytest.mark.parametrize("model", ["out", None, 3, torch.nn.Linear(1, 1), Transformer()])
@pytest.mark.parametrize("make", [zoo.generate, zoo.stream])
def test_of_what_is_no_model(make: Any, model: Any) -> None:
    with pytest.raises(InputError, match=r"is a zoo\.Transformer, not .*\n.*`zoo\.load` makes one"):
        make(model, [1], max_new_tokens=1)


@pytest.mark.parametrize("model", [None, torch.nn.Linear(1, 1)])
def test_of_weights_of_what_is_no_model(model: Any) -> None:
    told = r"the model that is {} is a zoo\.Transformer, not .*\n.*`zoo\.load` makes one"
    with pytest.raises(InputError, match=told.format("quantized")):
        zoo.quantize_weights(model)
    with pytest.raises(InputError, match=told.format("arranged")):
        zoo.arrange_weights(model, rows=1)


def test_of_what_holds_a_model(decoder: Transformer) -> None:
    message = told(torch.nn.DataParallel(decoder), [1])
    assert message.startswith("error: the model that generates is a zoo.Transformer, not a DataPar")
    assert "the model inside: `.module`" in message


def test_a_compiled_model_generates(decoder: Transformer) -> None:
    compiled: Any = torch.compile(decoder)
    options: dict[str, Any] = {"max_new_tokens": 2}
    assert zoo.generate(compiled, [1], **options) == zoo.generate(decoder, [1], **options)


def test_of_models_that_do_not_generate() -> None:
    for spec in (
        {"builder": "encoder", "vocab": 9},
        {"builder": "decoder", "vocab": 9, "head": "none"},
        {"builder": "decoder", "embedding": "vectors", "head": "none"},
    ):
        head = spec.get("head", "linear")
        told_of = f"m does not generate: its builder is `{spec['builder']}` and its head `{head}`"
        assert told_of in told(zoo.build({**SIZES, **spec}), [1])


FRONTEND = {"kind": "conv_frontend", "n_features": 5}


@pytest.mark.parametrize(("embedding", "width"), [("vectors", 8), (FRONTEND, 5)])
def test_of_vectors(embedding: Any, width: int) -> None:
    encoder = {"encoder": {"embedding": embedding}}
    spec = {**SIZES, **encoder, "builder": "encoder_decoder", "target_vocab": 9}
    model, good = zoo.build(spec), torch.randn(2, 6, width)
    nan = torch.where(good == good[0, 0, 0], torch.nan, good)
    for vectors, message in (
        ([1, 2], f"ids: vectors (batch, length, {width}) of floating-point numbers"),
        (torch.ones(2, 6).long(), f"ids: vectors (batch, length, {width}) of floating-point"),
        (good[0], f"ids: vectors (batch, length, {width}) of floating-point numbers"),
        (good[:0], f"ids: an empty batch, (0, 6, {width})"),
        (good[..., 1:], f"ids: vectors are (batch, length, {width}), not (2, 6, {width - 1})"),
        (good.to_sparse(), SPARSE),
        (good.to("meta"), META),
        (nan, "ids: not every number is finite in torch.float32"),
        (good.double() * 1e300, "ids: not every number is finite in torch.float32"),
    ):
        assert message in told(model, vectors, start=1)
    options: dict[str, Any] = {"start": 1, "max_new_tokens": 4}
    assert zoo.generate(model, good.double(), **options) == zoo.generate(model, good, **options)


def test_of_a_memory() -> None:
    model = zoo.build({**SIZES, "builder": "decoder", "vocab": 9, "memory_width": 8})
    good = torch.ones(2, 3, 8)
    for memory, mask, message in (
        (None, None, "attends to a memory"),
        (torch.ones(2, 3), None, "vectors (batch, length, 8)"),
        (torch.ones(2, 3, 6, 6), None, "vectors (batch, length, 8)"),
        (torch.ones(2, 3, 9), None, "memory: vectors are (batch, length, 8), not (2, 3, 9)"),
        (torch.ones(1, 3, 8), None, "1 row for 2 prompts"),
        (torch.full((2, 3, 8), torch.nan), None, "not every number is finite"),
        (good, ones(2, 4), "the mask is (2, 4); it must be (2, 3)"),
        (good, torch.ones(2, 3), "boolean tensor"),
    ):
        assert message in told(model, [[1], [2]], memory=memory, memory_mask=mask)
    found, same = (
        zoo.generate(model, [[1], [2]], memory=memory, max_new_tokens=2)
        for memory in (good, good.double())
    )
    assert found == same


@pytest.mark.parametrize("method", [zoo.Greedy(), zoo.Beam(size=2)])
def test_what_is_hidden_of_a_memory_is_not_attended_to(method: Any) -> None:
    spec = {**SIZES, "builder": "decoder", "vocab": 9, "memory_width": 8}
    model, memory = zoo.build(spec, dtype=torch.float64), torch.randn(2, 4, 8, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    options: dict[str, Any] = {"max_new_tokens": 3, "method": method}
    found = zoo.generate(model, [[1], [2]], memory=memory, memory_mask=mask, **options)
    for row, n_tokens in enumerate((2, 4)):
        alone = memory[row : row + 1, :n_tokens]
        (wanted,) = zoo.generate(model, [[row + 1]], memory=alone, **options)
        assert found[row].ids == wanted.ids
        assert found[row].score == pytest.approx(wanted.score, abs=1e-12)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "options",
    [
        {"method": zoo.Greedy()},
        {"method": zoo.Sampling()},
        {"method": zoo.Beam(size=2)},
        {"draft": zoo.Lookup()},
        {"method": zoo.Sampling(), "draft": zoo.Lookup()},
    ],
)
def test_of_weights_that_are_no_numbers(value: float, options: dict[str, Any]) -> None:
    model = zoo.build({**SIZES, "builder": "decoder", "vocab": 9})
    with torch.no_grad():
        model.decoder.norm.weight[0] = value
    with pytest.raises(WeightsError, match=r"m: the scores of the next token are not numbers"):
        zoo.generate(model, [[1], [2]], max_new_tokens=3, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 1e-39},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": -0.1},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-40},  # which makes logits infinite
        {"repetition_penalty": 1e40},
        {"seed": -1},
        {"seed": None},
    ],
)
def test_of_methods(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(InputError, match=f"^error: `{name}` must be "):
        zoo.Sampling(**options)


@pytest.mark.parametrize(("size", "bound"), [(0, "least 1"), (10_001, "most 10000")])
def test_of_the_number_of_beams(size: int, bound: str) -> None:
    with pytest.raises(
        InputError, match=f"^error: `size` must be at {bound}, not the integer `{size}`$"
    ):
        zoo.Beam(size=size)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_what_is_no_number_is_told_as_such(name: str) -> None:
    told = f"^error: `{name}` must be a finite number, not the float `nan`$"
    with pytest.raises(InputError, match=told):
        zoo.Sampling(**{name: float("nan")})


@pytest.mark.parametrize("alpha", [200.0, -200.0, float("nan")])
def test_lengths_whose_powers_are_infinite(alpha: float) -> None:
    with pytest.raises(InputError, match=r"^error: `length_penalty` must be "):
        zoo.Beam(length_penalty=alpha)
    assert zoo.Beam(length_penalty=16.0).score(-1.0, 10**6) == -1e-96


def test_of_what_is_no_method() -> None:
    with pytest.raises(
        InputError, match=r"^error: `zoo\.Beam` must be a table, not the integer `5`"
    ):
        zoo.Beam.model_validate(5)


def test_all_that_is_wrong_with_a_method_is_told() -> None:
    wrong: dict[str, Any] = {"length_formula": "gmnt", "length_penality": 1.0}
    wrong["early_stopping"] = "Never"
    with pytest.raises(InputError) as caught:
        zoo.Beam(**wrong)
    assert [(one.message, one.help) for one in caught.value.problems] == [
        (
            "`length_formula` must be one of `power`, `gnmt`, not the string `gmnt`",
            "did you mean `gnmt`?",
        ),
        (
            "`early_stopping` must be `true` or `false` or `never`, not the string `Never`",
            "did you mean `never`?",
        ),
        ("zoo.Beam has no `length_penality`", "did you mean `length_penalty`?"),
    ]


@pytest.mark.parametrize(
    ("stated", "meant"),
    [
        ("num_beams", "size"),
        ("forced_bos_token_id", "first_id"),
        ("forced_eos_token_id", "last_id"),
        ("bad_words_ids", "bad_words"),
        ("renormalize_logits", "renormalize"),
    ],
)
def test_the_names_that_transformers_has_are_understood(stated: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"zoo.Beam has no `{stated}`\n.*did you mean `{meant}`"):
        zoo.Beam(**{stated: 1})


def test_a_mask_and_the_padding_id_both_hide() -> None:
    found = read_ids(
        torch.tensor([[7, 0, 5, 6]]),
        torch.tensor([[False, True, True, True]]),
        what="ids",
        vocab=9,
        pad_id=0,
        pad="left",
    )
    assert found.values.tolist() == [[5, 6]]


def test_a_prompt_that_fills_all_positions_has_a_next_token() -> None:
    spec = {"format": 1, "name": "full", "builder": "decoder", "vocab": 9, "n_layers": 1}
    spec |= {"d_model": 8, "n_heads": 2, "d_ff": 16}
    position = {"kind": "learned", "max_length": 4}
    model = zoo.build({**spec, "position": position}, dtype=torch.float64).eval()
    (found,) = zoo.generate(model, [[1, 2, 3, 4]], max_new_tokens=1)
    assert found.ids == (int(model(torch.tensor([[1, 2, 3, 4]]))[0, -1].argmax()),)
    with pytest.raises(zoo.ZooError, match="`max_new_tokens` can be 1 at most"):
        zoo.generate(model, [[1, 2, 3, 4]], max_new_tokens=2)


def test_as_many_tokens_as_there_are_positions_fit() -> None:
    check_length(3, 5, "ids", most_new=3)  # the model is never called with the last one
    with pytest.raises(zoo.ZooError, match="longer than the model's 5 positions"):
        check_length(3, 5, "ids", most_new=4)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_ids_of_numpy_are_ids(decoder: Transformer, dtype: Any) -> None:
    wanted = zoo.generate(decoder, [[1, 2], [3, 4]], max_new_tokens=2)
    rows = np.array([[1, 2], [3, 4]], dtype)
    for ids in (rows, list(rows), torch.from_numpy(rows)):
        assert zoo.generate(decoder, ids, max_new_tokens=2, eos=[]) == wanted
    assert zoo.generate(decoder, rows[0], max_new_tokens=2)[0].ids == wanted[0].ids


@pytest.mark.parametrize("ids", [[[1]], [[1], [2, 3]]], ids=["one", "padded"])
@pytest.mark.parametrize("n", [10**15, 2**62])
@pytest.mark.parametrize("method", [zoo.Greedy(), zoo.Beam(size=2)])
def test_more_tokens_than_there_is_memory_for(ids: list[list[int]], method: Any, n: int) -> None:
    """For a model without a longest position."""
    model = zoo.build({**SIZES, "builder": "decoder", "vocab": 9, "position": "rotary"})
    with pytest.raises(InputError, match=r"does not fit into memory\n.*a smaller `max_new_tokens`"):
        zoo.generate(model, ids, max_new_tokens=n, method=method)


@pytest.mark.parametrize(
    ("what", "method"),
    [("beams", zoo.Beam(size=9)), ("answers", zoo.Sampling(n_answers=9))],
    ids=["beams", "answers"],
)
@pytest.mark.parametrize(
    ("vocab", "length", "n_bytes"),
    [
        # Two copies of the scores, and the keys and values of a layer.
        (9, 1, 2 * 4 * 9 + 2 * 4 * 8),
        (9, 100, 2 * 4 * 9 + 100 * 2 * 4 * 8),
        (500, 1, 2 * 4 * 500 + 2 * 4 * 8),
    ],
)
def test_more_beams_than_there_is_memory_for(
    monkeypatch: pytest.MonkeyPatch,
    vocab: int,
    length: int,
    n_bytes: int,
    what: str,
    method: zoo.Beam | zoo.Sampling,
) -> None:
    model = zoo.build({**SIZES, "builder": "decoder", "vocab": vocab, "position": "rotary"})
    asked: dict[str, Any] = {"max_new_tokens": 3, "method": method}
    monkeypatch.setattr("zoo.generation.decoding.memory_limit", lambda: 9 * n_bytes)
    assert zoo.generate(model, [1] * length, **asked)
    monkeypatch.setattr("zoo.generation.decoding.memory_limit", lambda: 9 * n_bytes - 1)
    with pytest.raises(
        InputError, match=rf"^error: 9 {what} do not fit into memory.*\n.*fewer {what}"
    ):
        zoo.generate(model, [1] * length, **asked)


def with_some_in_float32(*names: str) -> Transformer:
    """A decoder in bfloat16, but for some tensors."""
    model = zoo.build({**SIZES, "builder": "decoder", "vocab": 9, "norm": "rms_norm"})
    model.to(torch.bfloat16)
    for name in names:
        model.get_parameter(name).data = model.get_parameter(name).float()
    return model


RUNS: dict[str, Callable[[Transformer, Path], Any]] = {
    "generate": lambda model, _: zoo.generate(model, [1, 2], max_new_tokens=1),
    "stream": lambda model, _: list(zoo.stream(model, [1, 2], max_new_tokens=1)),
    "run": lambda _, path: zoo.TextModel.load(path).run(["1 2"]),
}


@pytest.mark.parametrize("how", RUNS)
def test_tensors_of_several_dtypes_that_cannot_be_computed_with(how: str, tmp_path: Path) -> None:
    first, other = (f"decoder.layers.0.ffn.{name}_proj.weight" for name in ("down", "up"))
    model = with_some_in_float32(first, other)
    zoo.save(model, tmp_path / "m")
    with pytest.raises(WeightsError) as error:
        RUNS[how](model, tmp_path / "m")
    told = f": {len(model.spec.tensors) - 2} tensors BF16, but `{first}` and 1 other F32\n"
    assert told in str(error.value)
    assert str(error.value).startswith("error: m cannot compute with tensors of several dtypes (")
    assert '`--dtype float32`, or in Python `dtype="float32"`' in str(error.value)
    assert zoo.TextModel.load(tmp_path / "m", dtype="float32").run(["1 2"])


def test_tensors_of_several_dtypes_that_can_be_computed_with() -> None:
    """A norm is computed in float32 anyway."""
    model = with_some_in_float32("decoder.norm.weight")
    (found,) = zoo.generate(model, [1, 2], max_new_tokens=3)
    (rounded,) = zoo.generate(model.to(torch.bfloat16), [1, 2], max_new_tokens=3)
    assert found.ids == rounded.ids  # its weight is 1, which bfloat16 has
