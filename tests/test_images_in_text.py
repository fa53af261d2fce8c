"""A decoder whose text has images in it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_specs import TINY_IMAGE_TEXT, randomized, with_value
from torch.nn import functional as F

import zoo
from zoo.generation import Generated

IMAGE_ID, N_STATES, VOCAB = 9, 4, 23
SEEN = [IMAGE_ID] * N_STATES
PROMPTS = [[1, *SEEN, 3], [5, *SEEN, *SEEN, 7, 2, 4], [1, 2, 3]]
N_IMAGES = [1, 2, 0]
IMAGES = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


changed = partial(with_value, TINY_IMAGE_TEXT)


@pytest.fixture(scope="module")
def model() -> Any:
    return randomized(TINY_IMAGE_TEXT)


@pytest.mark.parametrize("activation", ["gelu", "none"])
@pytest.mark.parametrize(("states", "n_states"), [("patches", 4), ("all", 5)])
def test_what_is_read_of_an_image(activation: str, states: str, n_states: int) -> None:
    """The states of a stack alone, without that of the class token unless it is asked for, mapped
    by one linear map or by two."""
    spec = changed("projector.activation", activation) | {"image_states": states}
    model = randomized(spec)
    found = model.image(IMAGES)[0][:, 5 - n_states :]
    if activation == "none":
        proj = model.projector.proj
        expected = found @ proj.weight.T + proj.bias
    else:
        up, down = model.projector.up_proj, model.projector.down_proj
        expected = F.gelu(found @ up.weight.T + up.bias) @ down.weight.T + down.bias
    torch.testing.assert_close(model.read_images(IMAGES), expected)
    assert expected.shape == (3, n_states, 16)
    generation = model.spec.model.generation
    assert generation is not None
    assert generation.inserted_images.n_states == n_states


@pytest.mark.parametrize("activation", ["silu", "none"])
def test_states_of_images_through_a_gate(activation: str) -> None:
    """A gated linear unit in the place of the maps; with `none`, the bilinear one."""
    projector = {"activation": activation, "d_hidden": 7, "norm": {"kind": "rms_norm", "eps": 0.1}}
    model = randomized(
        TINY_IMAGE_TEXT | {"builder": "glu_image_text_decoder", "projector": projector}
    )
    x = model.image(IMAGES)[0][:, 1:]
    maps = model.projector
    x = maps.norm.weight * x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()
    gate, up = (x @ one.weight.T + one.bias for one in (maps.gate_proj, maps.up_proj))
    gate = gate * gate.sigmoid() if activation == "silu" else gate
    expected = (gate * up) @ maps.down_proj.weight.T + maps.down_proj.bias
    torch.testing.assert_close(model.read_images(IMAGES), expected)
    assert maps.up_proj.weight.shape == (7, 12)


def test_states_of_images_through_three_maps() -> None:
    projector = {"d_hidden": 7, "norm": {"kind": "rms_norm", "eps": 0.1}}
    three = TINY_IMAGE_TEXT | {"builder": "adapted_image_text_decoder", "projector": projector}
    model = randomized(three)
    x = model.image(IMAGES)[0][:, 1:]
    maps = model.projector
    x = maps.norm.weight * x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()
    for one in (maps.up_proj, maps.mid_proj):
        x = F.gelu(x @ one.weight.T + one.bias)
    expected = x @ maps.down_proj.weight.T + maps.down_proj.bias
    torch.testing.assert_close(model.read_images(IMAGES), expected)
    assert maps.mid_proj.weight.shape == (7, 7)
    with pytest.raises(zoo.SpecError, match="without an activation between are a single one"):
        zoo.read_spec(three | {"projector": {"activation": "none"}})


@pytest.mark.parametrize("merge_by", ["concatenation", "mean"])
def test_states_of_patches_become_one(merge_by: str) -> None:
    """Squares of patches, by loops over rows and columns, and a norm of what they become."""
    spec = changed("image.embedding.image_size", 12) | {
        "projector": {"merge": 3, "merge_by": merge_by, "norm": "rms_norm", "activation": "none"}
    }
    spec["image"]["position"]["max_length"] = 37
    model = randomized(spec)
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(2)).double()
    grid = model.image(images)[0][:, 1:].unflatten(1, (6, 6))
    expected = []
    for row in range(0, 6, 3):
        for column in range(0, 6, 3):
            square = [grid[:, row + i, column + j] for i in range(3) for j in range(3)]
            one = torch.cat(square, -1) if merge_by == "concatenation" else sum(square) / 9
            assert isinstance(one, torch.Tensor)
            one = one / one.square().mean(-1, keepdim=True).add(1e-6).sqrt()
            one = one * model.projector.norm.weight
            expected.append(one @ model.projector.proj.weight.T + model.projector.proj.bias)
    torch.testing.assert_close(model.read_images(images), torch.stack(expected, 1))
    assert model.spec.model.generation is not None
    assert model.spec.model.generation.inserted_images.n_states == 4
    width = 12 * (9 if merge_by == "concatenation" else 1)
    n_parameters = sum(one.numel() for one in model.projector.parameters())
    assert n_parameters == width + width * 16 + 16
    assert model.spec.layout.find("projector.proj.weight").shape == (16, width)


BIDIRECTIONAL = {
    # query, key: whether the one sees the other, of `1 2 image 3` with an image of four states
    "none": lambda i, j: j <= i,
    "image": lambda i, j: j <= i or (2 <= i < 6 and 2 <= j < 6),
    "prompt": lambda i, j: j <= i or (i < 6 and j < 6),
}


@pytest.mark.parametrize("kind", BIDIRECTIONAL)
@pytest.mark.parametrize("window", [None, 3])
def test_who_sees_later_tokens(kind: str, window: int | None) -> None:
    """In the attention maps, within the window of a layer, with two images each sees itself."""
    spec = changed("bidirectional", kind)
    if window is not None:
        spec["decoder"]["self_attn"] = {"window": window}
    model = randomized(spec)
    text = torch.tensor([[1, 2, *SEEN, 3, *SEEN]])
    prompt = (torch.arange(11) < 6)[None] if kind == "prompt" else None
    _, maps = model(text, IMAGES[:2], prompt=prompt, return_attention=True)
    for map_ in maps.decoder:
        for i in range(11):
            for j in range(11):
                seen = BIDIRECTIONAL[kind](i, j) or (kind == "image" and i > 6 and j > 6)
                seen = seen and (window is None or i - j < window)
                assert bool((map_[0, :, i, j] > 0).all()) == seen, (i, j)


def test_padding_is_not_seen_in_a_prompt() -> None:
    model = randomized(changed("bidirectional", "prompt"))
    text = torch.tensor([[0, 0, 1, *SEEN, 3, 5], [1, 2, 4, *SEEN, 3, 5]])
    mask, prompt = torch.ones_like(text, dtype=torch.bool), torch.ones_like(text, dtype=torch.bool)
    mask[0, :2], prompt[:, -1] = False, False
    found = model(text, IMAGES[:2], target_mask=mask, prompt=prompt)
    alone = model(text[:1, 2:], IMAGES[:1], prompt=prompt[:1, 2:])
    torch.testing.assert_close(found[:1, 2:], alone)
    with pytest.raises(ValueError, match='a `prompt` is for a spec that says `bidirectional = "pr'):
        randomized(TINY_IMAGE_TEXT)(text, IMAGES[:2], prompt=prompt)


@pytest.mark.parametrize("kind", ["image", "prompt"])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"cache": False},
        {"method": zoo.Beam(size=2, length_penalty=0.0)},
        {"method": zoo.Beam(size=2, length_penalty=0.0), "cache": False},
        {"draft": zoo.Lookup()},
    ],
    ids=lambda asked: " ".join(asked),
)
def test_bidirectional_prompts_are_continued(kind: str, asked: dict[str, Any]) -> None:
    """Prompts of other lengths together, each as calls with all of its tokens continue it."""
    model = randomized(changed("bidirectional", kind))
    found = zoo.generate(model, PROMPTS, images=IMAGES, max_new_tokens=4, **asked)
    for ids, seen, one in zip(PROMPTS, IMAGES.split(N_IMAGES), found, strict=True):
        target, score = torch.tensor([[*ids, *one.ids]]), 0.0
        assert IMAGE_ID not in one.ids
        prompt = (torch.arange(target.shape[1]) < len(ids))[None] if kind == "prompt" else None
        logits = model(target, seen if len(seen) else None, prompt=prompt)
        scores = logits[0, len(ids) - 1 : -1].log_softmax(-1)
        score = scores.gather(1, torch.tensor(one.ids)[:, None]).sum().item()
        assert one.score == pytest.approx(score, abs=1e-10)
        if "method" not in asked:
            assert scores.argmax(-1).tolist() == list(one.ids)


@pytest.mark.parametrize(
    ("embedding", "position", "factor"),
    [
        ({"kind": "tokens"}, {"kind": "rotary"}, 1.0),
        ({"kind": "tokens", "scale": "sqrt_d_model"}, {"kind": "rotary"}, 4.0),
        ({"kind": "tokens", "norm": "layer_norm"}, {"kind": "learned", "max_length": 16}, 1.0),
        (
            {"kind": "tokens", "d_embed": 16, "projection": "before_positions"},
            {"kind": "learned", "max_length": 16},
            None,
        ),
    ],
)
def test_states_stand_where_vectors_of_tokens_do(
    embedding: dict[str, Any], position: dict[str, Any], factor: float | None
) -> None:
    """States that are the vectors of tokens give what these tokens give. No scale of the embedding
    applies to them."""
    spec = changed("decoder.position", position)
    spec["decoder"]["embedding"] = embedding
    model = randomized(spec)
    text = torch.tensor([[3, 5, 7, 2, 8], [1, 11, 4, 4, 6]])
    embed = model.decoder.embed
    table = embed.tokens.weight
    vectors = embed.proj(table) if factor is None else factor * table
    ids = text.clone()
    ids[0, 1:3], ids[1, 4] = torch.tensor([VOCAB, VOCAB + 1]), VOCAB + 2
    found = model.decode(ids, inserted=vectors[text[[0, 0, 1], [1, 2, 4]]])
    torch.testing.assert_close(found, model.decode(text))


def test_a_call_is_the_text_with_the_states_in_it(model: Any) -> None:
    text = torch.tensor([[1, *SEEN, 3], [*SEEN, 2, 5]])
    states = model.read_images(IMAGES[:2])
    ids, inserted = model.insert_images(text, IMAGES[:2])
    assert ids.tolist() == [[1, 23, 24, 25, 26, 3], [27, 28, 29, 30, 2, 5]]
    torch.testing.assert_close(inserted, states.flatten(0, 1))
    output, maps = model(text, IMAGES[:2], return_attention=True)
    torch.testing.assert_close(output, model.head(model.decode(ids, inserted=inserted)))
    assert [len(kind) for kind in maps] == [2, 2, 0]
    assert maps.encoder[0].shape == (2, 2, 5, 5)
    assert not torch.allclose(output, model(text, IMAGES[[1, 0]]))
    # Without images, the token is one like others.
    torch.testing.assert_close(model(text), model.head(model.decode(text)))


def test_padding_holds_no_image(model: Any) -> None:
    text = torch.tensor([[1, *SEEN, 3], [IMAGE_ID, IMAGE_ID, 1, 2, 3, 5]])
    mask = torch.ones_like(text, dtype=torch.bool)
    mask[1, :2] = False
    found = model(text, IMAGES[:1], target_mask=mask)
    torch.testing.assert_close(found[:1], model(text[:1], IMAGES[:1]))
    other = text.clone()
    other[1, :2] = 0
    torch.testing.assert_close(found[1, 2:], model(other, IMAGES[:1], target_mask=mask)[1, 2:])


@pytest.mark.parametrize(
    ("text", "n_images", "message"),
    [
        ([[1, *SEEN]], 2, "4 places of the token 9, which are for 1 image, .*, of 8 states toge"),
        ([[1, *SEEN, 9]], 1, "5 places of the token 9, and .* the next images have 4$"),
        ([[1, *SEEN, 9], [1, 2, 9, 9, 9, 3]], 2, "sequence 0 has 5 places .* have 4, 4$"),
        ([[1, 2]], 1, "0 places of the token 9, which are for 0 images, and 1 image given, of 4"),
    ],
)
def test_places_and_images_must_agree(
    model: Any, text: list[list[int]], n_images: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        model(torch.tensor(text), IMAGES[:n_images])
    with pytest.raises(zoo.InputError, match=message):
        zoo.generate(model, text, images=IMAGES[:n_images], max_new_tokens=2)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("image_id", 23, "image_id = 23 is beyond the vocabulary of 23 tokens"),
        ("image_id", -1, "must be at least 0"),
        ("decoder.pad_id", 9, "the id 9 cannot stand for images and for padding"),
        ("image.embedding", {"kind": "vectors"}, "the embedding `vectors` takes no images"),
        (
            "decoder.embedding",
            {"kind": "projected_vectors", "n_features": 5},
            "images cannot stand among the vectors of the embedding `projected_vectors`",
        ),
        ("memory_width", 12, "memory_width"),
        ("projector", {"merge": 3}, "2 x 2 patches cannot be divided into squares of 3 x 3"),
        (
            "projector",
            {"merge_by": "mean"},
            "`merge_by` of `projector` changes nothing beside `merge = 1`",
        ),
        ("bidirectional", "all", "must be one of `none`, `image`, `prompt`"),
    ],
)
def test_a_wrong_spec_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(changed(path, value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"image_states": "all", "projector": {"merge": 2}},
            "the states before those of the patches cannot be merged",
        ),
        (
            {"bidirectional": "image", "decoder": {"d_model": 16, "causal": False}},
            "`bidirectional` changes nothing beside `causal = false`",
        ),
        (
            {"bidirectional": "prompt", "decoder": {"d_model": 16, "self_attn": "mamba"}},
            "such as a recurrence, cannot be bidirectional",
        ),
    ],
)
def test_a_spec_that_contradicts_itself(changes: dict[str, Any], message: str) -> None:
    spec = {**copy.deepcopy(TINY_IMAGE_TEXT), **changes}
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(spec)


METHODS = [
    zoo.Greedy(),
    zoo.Beam(size=3, n_answers=2),
    zoo.Sampling(seed=3, n_answers=2),
]


def same(found: Sequence[Generated], expected: Sequence[Generated]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.ids == other.ids
        assert one.score == pytest.approx(other.score, abs=1e-10)
        same(one.others, other.others)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_generation_with_and_without_a_cache(model: Any, method: Any) -> None:
    """Prompts with one image, with two, and with none, together and each alone."""
    asked = {"max_new_tokens": 6, "method": method}
    found = zoo.generate(model, PROMPTS, images=IMAGES, **asked)
    same(found, zoo.generate(model, PROMPTS, images=IMAGES, cache=False, **asked))
    if isinstance(method, zoo.Sampling):
        return  # the numbers that it draws are those of a batch
    images = IMAGES.split(N_IMAGES)
    for prompt, seen, one in zip(PROMPTS, images, found, strict=True):
        alone = zoo.generate(model, prompt, images=seen if len(seen) else None, **asked)
        same([one], alone)


def test_greedy_tokens_are_those_of_calls_with_all(model: Any) -> None:
    for ids, seen in zip(PROMPTS, IMAGES.split(N_IMAGES), strict=True):
        (found,) = zoo.generate(
            model, ids, images=seen if len(seen) else None, max_new_tokens=6, draft=zoo.Lookup()
        )
        target, score = torch.tensor([[*ids, *found.ids]]), 0.0
        # A generated `image_id` is a token, and no place of an image.
        expected, inserted = target, None
        if len(seen):
            read, inserted = model.insert_images(target[:, : len(ids)], seen)
            expected = torch.cat([read, target[:, len(ids) :]], 1)
        states = model.decode(expected, inserted=inserted)
        scores = model.head(states)[0, len(ids) - 1 : -1].log_softmax(-1)
        assert scores.argmax(-1).tolist() == list(found.ids)
        score = scores.max(-1).values.sum().item()
        assert found.score == pytest.approx(score, abs=1e-10)


def test_the_images_are_read_once(model: Any) -> None:
    calls: list[int] = []
    hook = model.image.register_forward_hook(lambda *_: calls.append(1))
    try:
        zoo.generate(model, PROMPTS, images=IMAGES, max_new_tokens=5, method=zoo.Beam(size=2))
    finally:
        hook.remove()
    assert len(calls) == 1


def test_images_where_none_belong(model: Any) -> None:
    decoder = {"format": 1, "name": "d", "builder": "decoder", "vocab": 23}
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    plain = zoo.build(decoder | sizes)
    with pytest.raises(zoo.InputError, match="d takes no images in its prompts"):
        zoo.generate(plain, [1, 2], images=IMAGES[:1], max_new_tokens=2)
    with pytest.raises(zoo.InputError, match="guesses no tokens of prompts with images"):
        zoo.generate(model, PROMPTS[0], images=IMAGES[:1], max_new_tokens=2, draft=zoo.Draft(plain))


def test_it_is_saved_and_loaded(model: Any, tmp_path: Path) -> None:
    zoo.save(model, tmp_path / "model.safetensors")
    loaded = zoo.load(tmp_path / "model.safetensors").eval()
    text = torch.tensor([PROMPTS[0]])
    torch.testing.assert_close(loaded(text, IMAGES[:1]), model(text, IMAGES[:1]))
    assert loaded.spec.model.task == "generate"
