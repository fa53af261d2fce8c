"""Text that is generated from images, against searches that are written out: no cache, no batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Any, TypeVar

import pytest
import torch
import transformers
from references.images import states

import zoo
from zoo.transformer import Transformer

Module = TypeVar("Module", bound=torch.nn.Module)
VOCAB, START, EOS, NEW, N_HEADS, N_LAYERS, PATCH = 13, 1, 2, 8, 2, 2, 4
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "captioner",
    "builder": "encoder_decoder",
    "target_vocab": VOCAB,
    "n_layers": N_LAYERS,
    "d_model": 16,
    "n_heads": N_HEADS,
    "d_ff": 24,
    "encoder": {
        "embedding": {"kind": "patches", "image_size": 8, "patch_size": PATCH},
        "position": {"kind": "learned", "max_length": 5},
        "ffn": {"kind": "mlp", "activation": "gelu"},
    },
    "decoder": {"position": {"kind": "learned", "max_length": 12}},
}


def captioner(**other: Any) -> Transformer:
    return varied(zoo.build({**SPEC, **other}, dtype=torch.float64).eval())


def varied(model: Module) -> Module:
    """The model with random values, so that its captions depend on the image and the place: what
    reads them is large."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            large = re.search("cross_?att|positions|wpe", name)
            noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            parameter += (1.5 if large else 0.3) * noise
    return model


def images(n: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(7)
    return torch.randn(n, 3, 8, 8, generator=random, dtype=torch.float64)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return captioner()


@torch.no_grad()
def log_probabilities(model: Any, image: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Of the token after each of these, (tokens, vocab). The encoder is the reference's."""
    memory = states(dict(model.named_parameters()), image[None], PATCH, N_HEADS, N_LAYERS)
    scores = model.head(model.decode(torch.tensor([ids]), memory))
    found: torch.Tensor = scores[0].log_softmax(-1)
    return found


def greedy(model: Any, image: torch.Tensor) -> tuple[tuple[int, ...], float]:
    """The caption and its log-probability: at each step a pass over all tokens before it."""
    ids, total = [START], 0.0
    while len(ids) <= NEW and ids[-1] != EOS:
        value, token = log_probabilities(model, image, ids)[-1].max(-1)
        ids.append(int(token))
        total += float(value)
    return tuple(ids[1:]), total


def captions(model: Transformer, given: torch.Tensor, **options: Any) -> list[zoo.Generated]:
    return zoo.generate(model, given, max_new_tokens=NEW, start=START, eos=EOS, **options)


def alike(found: Sequence[zoo.Generated], wanted: Sequence[zoo.Generated]) -> None:
    assert [one.ids for one in found] == [one.ids for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-10)


@pytest.mark.parametrize("cache", [True, False])
def test_greedy_search(model: Transformer, cache: bool) -> None:
    wanted = [greedy(model, image) for image in images(6)]
    assert len({ids for ids, _ in wanted}) == 6
    assert {len(ids) for ids, _ in wanted} > {NEW}  # some end earlier
    found = captions(model, images(6), cache=cache)
    assert [one.ids for one in found] == [ids for ids, _ in wanted]
    for one, (_, score) in zip(found, wanted, strict=True):
        assert one.score == pytest.approx(score, abs=1e-10)


def test_a_wide_beam_finds_the_best_of_all() -> None:
    vocab, length, eos = 4, 3, 3
    model = captioner(target_vocab=vocab)
    every = [
        (*start, *end)
        for n in range(length)
        for start in product(range(3), repeat=n)
        for end in ([(eos,)] if n < length - 1 else [(id_,) for id_ in range(vocab)])
    ]

    def judged(image: torch.Tensor, ids: tuple[int, ...]) -> float:
        table = log_probabilities(model, image, [START, *ids[:-1]])
        return sum(float(table[n, id_]) for n, id_ in enumerate(ids)) / len(ids)

    best = [max(every, key=lambda ids: judged(image, ids)) for image in images(6)]
    assert len(set(best)) > 2
    method = zoo.Beam(size=vocab**length)
    found = zoo.generate(
        model, images(6), max_new_tokens=length, start=START, eos=eos, method=method
    )
    assert [one.ids for one in found] == best
    for one, image in zip(found, images(6), strict=True):
        assert one.score == pytest.approx(judged(image, one.ids), abs=1e-5)


@pytest.mark.parametrize("method", [zoo.Greedy(), zoo.Beam(size=3)], ids=["greedy", "beam"])
def test_alone_and_without_a_cache_the_same(model: Transformer, method: Any) -> None:
    found = captions(model, images(4), method=method)
    alike(captions(model, images(4), method=method, cache=False), found)
    for image, one in zip(images(4), found, strict=True):
        alike(captions(model, image, method=method), [one])
        alike(captions(model, image[None], method=method), [one])


@pytest.mark.parametrize("method", [zoo.Greedy(), zoo.Sampling(seed=4)], ids=["greedy", "drawn"])
def test_a_stream_is_what_is_generated(model: Transformer, method: Any) -> None:
    wanted = [list(one.ids) for one in captions(model, images(4), method=method)]
    rows: list[list[int]] = [[] for _ in wanted]
    for step in zoo.stream(
        model, images(4), max_new_tokens=NEW, start=START, eos=EOS, method=method
    ):
        for row, id_ in zip(rows, step, strict=True):
            row.extend([] if id_ is None else [id_])
    assert rows == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_images_are_converted_to_the_dtype_of_the_model(
    model: Transformer, dtype: torch.dtype
) -> None:
    rounded = images(4).to(dtype)
    alike(captions(model, rounded), captions(model, rounded.double()))


def test_a_caption_that_is_there_is_scored(model: Transformer) -> None:
    """By a call of the model, with the image and the caption."""
    (found,) = captions(model, images(1))
    target = torch.tensor([[START, *found.ids]])
    with torch.no_grad():
        scores = model(images(1), target[:, :-1]).log_softmax(-1)
    total = scores.gather(-1, target[:, 1:, None]).sum()
    assert float(total) == pytest.approx(found.score, abs=1e-10)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Transformer]:
    """A ViT under a GPT-2 of transformers, and the zoo's, both in float64."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    seen = transformers.ViTConfig(**sizes, intermediate_size=32, image_size=8, patch_size=4)
    written = transformers.GPT2Config(
        n_embd=24, n_layer=2, n_head=2, vocab_size=VOCAB, n_positions=20
    )
    written.bos_token_id = written.eos_token_id = EOS
    pair = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, written)
    theirs = varied(transformers.VisionEncoderDecoderModel(pair).double().eval())
    folder = tmp_path_factory.mktemp("imported")
    theirs.save_pretrained(folder / "theirs")
    zoo.import_folder(folder / "theirs", folder / "ours", name="ours")
    return theirs, zoo.load(folder / "ours").eval()


@pytest.mark.parametrize("beams", [1, 3])
def test_captions_are_those_of_transformers(imported: tuple[Any, Transformer], beams: int) -> None:
    theirs, ours = imported
    config = transformers.GenerationConfig(
        max_new_tokens=NEW,
        num_beams=beams,
        do_sample=False,
        decoder_start_token_id=START,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    wanted = []
    for image in images(6):
        (ids,) = theirs.generate(pixel_values=image[None], generation_config=config).tolist()
        wanted.append(tuple(ids[1:]))
    assert len(set(wanted)) > 2
    method = zoo.Greedy() if beams == 1 else zoo.Beam(size=beams, length_penalty=1.0)
    found = [one.ids for one in captions(ours, images(6), method=method)]
    assert found == wanted
