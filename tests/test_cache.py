"""With a cache, a model gives the same scores as for all tokens at once, in float64."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_plugins import KNOWS_NO_CACHE
from random_values import add_noise
from small_specs import EXAMPLES, small

import zoo
from zoo.cache import AttentionCache, Cache
from zoo.generation.decoding import Decoding, Memory, RecomputeWarning
from zoo.generation.prompts import read_ids
from zoo.plugin_kit.project import new_plugin
from zoo.registry import load_registry
from zoo.transformer import Transformer

VOCAB = 23
ROWS = ([3, 7, 4, 9, 11, 6, 8, 5, 12, 3, 4], [8, 4, 6, 21, 3, 9, 9, 14], [7, 5, 3, 12, 16, 6, 20])
"""Sequences whose last 6 tokens are added one by one, the others in one call."""
STEPS = 6


def built(spec: dict[str, Any]) -> Transformer:
    """Return a model in which every tensor matters, including those that start at 0 or 1."""
    return add_noise(zoo.build(spec, dtype=torch.float64).eval())


def tiny(**values: Any) -> dict[str, Any]:
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 4, "d_ff": 24}
    return {"format": 1, "name": "tiny", "builder": "decoder", "vocab": VOCAB, **sizes, **values}


def alone(model: Transformer, row: Sequence[int], number: int) -> torch.Tensor:
    """Return the scores after this row, computed from this row alone, in one call."""
    target = torch.tensor([row])
    return model(*source(model, number), target)[0, -1]


def source(model: Transformer, number: int) -> tuple[torch.Tensor, ...]:
    """Return the encoder's input for the row of this number, whose length depends on the number."""
    if not hasattr(model, "encode"):
        return ()
    return (torch.tensor([[4, 9, 3, 17, 6][: 3 + number]]),)


def memory(model: Transformer) -> Memory | None:
    if not hasattr(model, "encode"):
        return None
    rows = [source(model, number)[0][0].tolist() for number in range(len(ROWS))]
    padded = read_ids(rows, what="", vocab=VOCAB)
    states = model.encode(padded.values, source_mask=padded.mask)
    return Memory(states, model.memory_mask(padded.values, padded.mask))


def check(model: Transformer) -> Decoding:
    """Check that each row of a padded batch, extended with a cache, has the scores that it has
    alone, also after the rows change their places, as beams do."""
    first = [list(row[:-STEPS]) for row in ROWS]
    prompt = read_ids(first, what="", vocab=VOCAB, pad="left")
    decoding = Decoding(model, capacity=len(ROWS[0]), memory=memory(model), keep=True)
    tokens, mask = prompt.values, prompt.mask
    order = [0, 1, 2]
    for step in range(STEPS + 1):
        scores = decoding.scores(tokens, mask)
        for found, number in zip(scores, order, strict=True):
            row = ROWS[number]
            expected = alone(model, row[: len(row) - STEPS + step], number)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        if step == STEPS // 2:
            order = [2, 0, 1]
            decoding.select(torch.tensor(order), torch.tensor(order))
        if step < STEPS:
            tokens = torch.tensor([[ROWS[number][step - STEPS]] for number in order])
            mask = None
    return decoding


def generating() -> list[Path]:
    registry = zoo.load_registry()
    specs = ((path, zoo.read_spec(path, registry=registry)) for path in EXAMPLES)
    return [path for path, spec in specs if spec.model.generation is not None]


@pytest.mark.parametrize("path", generating(), ids=lambda path: path.stem)
@torch.no_grad()
def test_registered_models(path: Path) -> None:
    model = built(small(path))
    with warnings.catch_warnings(record=True) as told:
        check(model)
    # The two models that are not causal cannot use a cache, and warn.
    all_at_once = "reference-0" in model.spec.name
    assert [warning.category for warning in told] == [RecomputeWarning] * all_at_once


BUCKETS = {"kind": "t5_buckets", "n_buckets": 8, "max_distance": 6}
LATENT = {
    "kind": "latent",
    "kv_lora_rank": 6,
    "q_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
SPARSE_LATENT = {
    **LATENT,
    "kind": "sparse_latent",
    "index_n_heads": 3,
    "index_head_dim": 7,
    "index_topk": 3,
}
SHARED_SPARSE_LATENT = {**LATENT, "kind": "shared_sparse_latent"}
SUMMARIES = {
    "kind": "compressed_sparse",
    "q_lora_rank": 5,
    "nope_head_dim": 3,
    "rope_head_dim": 4,
    "window": 3,
    "o_groups": 2,
    "o_lora_rank": 5,
    "compress_rate": 2,
    "index_n_heads": 3,
    "index_head_dim": 7,
    "index_topk": 2,
}
HEAVY = {k: v for k, v in SUMMARIES.items() if not k.startswith("index")} | {
    "kind": "heavily_compressed",
    "compress_rate": 4,
}
PAIR = {
    "builder": "encoder_decoder",
    "vocab": None,
    "source_vocab": VOCAB,
    "target_vocab": VOCAB,
}


def heads(**values: Any) -> dict[str, Any]:
    return {"attention": {"kind": "multi_head", **values}}


def sharing(*rules: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Four layers, of which the second and fourth attend to the keys and values of earlier ones."""
    last = {"at": [1, 3], "attention": {"kind": "cross_layer", **values}}
    return {"n_layers": 4, "n_kv_heads": 2, "decoder": {"layers": [*rules, last]}}


VARIANTS: dict[str, dict[str, Any]] = {
    "no_position": {"position": "none"},
    "sinusoidal": {"position": {"kind": "sinusoidal", "offset": 2}},
    "learned": {"position": {"kind": "learned", "max_length": 12, "offset": 2}},
    "rotary": {"position": "rotary"},
    "rotary_partial": {"position": {"kind": "rotary", "fraction": 0.5, "pairs": "interleaved"}},
    "rotary_yarn": {"position": {"kind": "rotary_yarn", "factor": 4.0, "original_length": 8}},
    "rotary_linear": {"position": {"kind": "rotary_linear", "factor": 4.0}},
    "alibi": {"position": "alibi"},
    "alibi_rounded": {"position": {"kind": "alibi", "rounding": "bfloat16"}},
    "t5_buckets": {"position": BUCKETS},
    "fire": {"position": {"kind": "fire", "threshold": 4.0}},
    "two_schemes": {"decoder": {"relative": BUCKETS, "position": "alibi"}},
    "scheme_of_a_layer": {"block": {"kind": "residual", "self_position": BUCKETS}},
    "grouped": {"position": "rotary"} | heads(n_kv_heads=2),
    "forgetting": {"position": "rotary"} | {"attention": {"kind": "forgetting", "n_kv_heads": 2}},
    "talking_heads": {"position": "alibi", "n_kv_heads": 2, "attention": "talking_heads"},
    "multi_dconv_head": {"position": "rotary", "attention": "multi_dconv_head"},
    "gmlp": {"n_heads": None, "attention": {"kind": "gmlp", "max_length": 24}},
    "gmlp_beside_attention": {
        "decoder": {"layers": [{"at": [1], "attention": {"kind": "gmlp", "max_length": 24}}]}
    },
    "gated_bias": {"position": BUCKETS, "attention": "gated_bias"},
    "rotated_input": {"position": "rotary", "attention": "rotated_input"},
    "window": {"position": "rotary"} | heads(n_kv_heads=1, window=3),
    "window_of_one": heads(window=1),
    "window_both_sides": heads(window=2, window_sides="both"),
    "window_biased": {"position": "alibi"} | heads(window=3),
    "chunk": {"position": "rotary"} | heads(chunk=3),
    "window_in_one_layer": {
        "position": "rotary",
        "decoder": {"layers": [{"at": [1], "attention": {"window": 2}}]},
    },
    "sinks": heads(sinks=True, window=4),
    "softcap": heads(softcap=2.0),
    "norms": {"position": "rotary"}
    | heads(qk_norm="rms_norm", qk_norm_site="after_rotation", v_norm="rms_norm"),
    "full_norm": heads(qk_norm="rms_norm", qk_norm_scope="full"),
    "norm_of_each_head": heads(qk_norm="layer_norm", qk_norm_scope="per_head"),
    "keys_as_values": heads(values="keys"),
    "rotated_values": {"position": "rotary"} | heads(rotate_values=True),
    "temperature": heads(q_temperature="log", q_temperature_floor=2.0),
    "gate": heads(output_gate="sigmoid", output_gate_scope="head"),
    "uniform": heads(masked_rows="uniform"),
    "latent": {"position": "rotary", "attention": LATENT},
    "latent_temperature": {
        "position": "rotary",
        "attention": LATENT | {"q_temperature": "log", "q_temperature_floor": 2.0},
    },
    "sparse_latent": {"position": "rotary", "attention": SPARSE_LATENT},
    "shared_sparse_latent": {
        "position": "rotary",
        "n_layers": 3,
        "attention": SPARSE_LATENT,
        "decoder": {"layers": [{"at": [1], "attention": SHARED_SPARSE_LATENT}]},
    },
    "compressed_sparse": {"position": "rotary", "attention": SUMMARIES},
    "heavily_compressed": {"position": "rotary", "attention": HEAVY},
    "summaries_without_positions": {"position": "none", "attention": SUMMARIES},
    "summaries_with_positions_of_a_layer": {
        "block": {"kind": "residual", "self_position": "rotary"},
        "position": "none",
        "attention": SUMMARIES,
    },
    "summaries_of_counted_tokens": {
        "position": "rotary",
        "attention": SUMMARIES,
        "pad_id": 1,
        "decoder": {"count_positions": "unpadded"},
    },
    "experts_of_ids": {"ffn": {"kind": "hash_moe", "n_experts": 4, "top_k": 2}},
    "latent_in_pair": {**PAIR, "position": "none", "attention": LATENT, "head_dim": None},
    "differential": {"position": "rotary", "attention": "differential", "n_kv_heads": 2},
    "differential_in_pair": {**PAIR, "position": "none", "attention": "differential"},
    "shared_keys": sharing(),
    "shared_keys_turned": {"position": "rotary", **sharing()},
    "shared_keys_biased": {"position": "alibi", **sharing()},
    "shared_keys_in_windows": {
        "position": "rotary",
        **sharing(
            {"at": [0, 1], "self_attn": {"window": 3}},
        ),
    },
    "shared_keys_with_all_else": {
        "position": "rotary",
        **sharing(
            qk_norm="rms_norm",
            q_temperature="log",
            q_temperature_floor=2.0,
            output_gate="sigmoid",
            sinks=True,
            softcap=3.0,
        ),
    },
    "linear": {"attention": "linear"},
    "linear_in_pair": {**PAIR, "attention": "linear"},
    "linear_in_one_layer": {"decoder": {"layers": [{"at": [1], "attention": "linear"}]}},
    "linear_beside_experts": {
        "attention": "linear",
        "ffn": {"kind": "conv1d", "kernel_size": 1},
    },
    "shared_layers": {"decoder": {"share_layers": True}, "position": BUCKETS},
    "layers_in_sets": {"n_layers": 4, "decoder": {"share_layers": [0, 1, 0, 0]}},
    "seen_padding": {"pad_id": 3, "padding": "seen", "position": "rotary"},
    "seen_padding_without_position": {
        "pad_id": 3,
        "padding": "seen",
        "position": {"kind": "learned", "max_length": 12, "offset": 2},
        "decoder": {"count_positions": "unpadded", "relative": BUCKETS},
    },
    "counted_padding": {"pad_id": 1, "decoder": {"count_positions": "unpadded"}},
    "counted_mask": {"decoder": {"count_positions": "unmasked"}},
    "parallel": {"norm_placement": "parallel", "position": "rotary"},
    "pair": {**PAIR, "pad_id": 1},
    "pair_with_buckets": {**PAIR, "position": BUCKETS}
    | heads(n_kv_heads=2, window=2, window_sides="past")
    | {
        "decoder": {"cross_attn": {"window": "none"}},
    },
    "experts": {"ffn": {"kind": "moe", "n_experts": 4, "top_k": 2, "expert": "glu"}},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_components(name: str) -> None:
    values = {key: value for key, value in (tiny() | VARIANTS[name]).items() if value is not None}
    check(built(values))


@pytest.mark.parametrize(
    "name",
    [
        "learned",
        "rotary",
        "alibi",
        "t5_buckets",
        "window",
        "chunk",
        "gate",
        "latent",
        "sparse_latent",
        "shared_sparse_latent",
        "compressed_sparse",
        "heavily_compressed",
        "differential",
        "forgetting",
        "shared_keys_turned",
        "linear",
    ],
)
@torch.no_grad()
def test_several_tokens_at_a_time(name: str) -> None:
    """As when a text is scored in pieces: each token sees the earlier ones of its piece, too, and
    no later ones."""
    model = built(tiny() | VARIANTS[name])
    ids = torch.tensor([ROWS[0]])
    cache = Cache(ids.shape[1])
    pieces = [model.decode(piece, cache=cache) for piece in ids.split([4, 3, 1, 3], 1)]
    found = model.head(torch.cat(pieces, 1))
    torch.testing.assert_close(found, model(ids), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "name",
    [
        "learned",
        "rotary",
        "window",
        "gate",
        "latent",
        "sparse_latent",
        "compressed_sparse",
        "linear",
        "counted_padding",
        "experts",
        "pair",
    ],
)
def test_padding_among_what_is_generated_scores_the_same_without_a_cache(name: str) -> None:
    """It is hidden from what follows it, and the next token is predicted from it all the same."""
    values = tiny() | VARIANTS[name] | {"pad_id": 1}
    model = built({key: value for key, value in values.items() if value is not None})
    options = {"start": 1} if "source_vocab" in values else {}
    random = zoo.Sampling(temperature=1e6, seed=1)  # every token is as likely
    found, anew = (
        zoo.generate(
            model, [[3, 4, 5], [6, 1]], max_new_tokens=9, method=random, cache=cache, **options
        )
        for cache in (True, False)
    )
    assert any(1 in one.ids[:-1] for one in found)
    assert [one.ids for one in found] == [one.ids for one in anew]
    for one, other in zip(found, anew, strict=True):
        assert one.score == pytest.approx(other.score, rel=0, abs=1e-10)


RECOMPUTED: dict[str, tuple[dict[str, Any], str]] = {
    "dynamic": (
        {"position": {"kind": "rotary_dynamic", "factor": 2.0, "original_length": 6}},
        "positions are told apart otherwise",
    ),
    "dynamic_in_the_block": (
        {
            "position": "none",
            "block": {
                "kind": "residual",
                "self_position": {"kind": "rotary_dynamic", "factor": 2.0, "original_length": 6},
            },
        },
        "positions are told apart otherwise",
    ),
    "longrope": (
        {
            "position": {
                "kind": "rotary_longrope",
                "original_length": 6,  # which two of the rows outgrow, one after the other
                "factor": 2.0,
                "short_factors": [1.0, 1.5],
                "long_factors": [2.0, 4.0],
            }
        },
        "positions are told apart otherwise",
    ),
    "disentangled": (
        {
            "position": {"kind": "disentangled", "max_distance": 4},
            "attention": {"kind": "disentangled"},
        },
        "attention `disentangled` cannot use a cache",
    ),
    "mask_tokens": (
        {"embedding": {"kind": "tokens", "token_dropout": 0.1, "mask_id": 3}},
        "embedding `tokens` cannot use a cache",
    ),
    "temperature_across": (
        {**PAIR, "cross_attn": {"kind": "multi_head", "q_temperature": "log"}},
        "attention `multi_head` cannot use a cache",
    ),
}


@pytest.mark.parametrize("name", RECOMPUTED)
@torch.no_grad()
def test_what_cannot_be_kept_is_computed_anew_and_told(name: str) -> None:
    values, message = RECOMPUTED[name]
    spec = {key: value for key, value in (tiny() | values).items() if value is not None}
    with pytest.warns(RecomputeWarning, match=message) as told:
        check(built(spec))
    assert len(told) == 1


@torch.no_grad()
def test_a_convolution_over_the_sequence_is_computed_anew() -> None:
    """The result depends on padding, so each sequence is compared by itself."""
    model = built(tiny(ffn={"kind": "conv1d", "kernel_size": 3}))
    with pytest.warns(RecomputeWarning, match="ffn `conv1d`"):
        (found,) = zoo.generate(model, [[3, 4, 5]], max_new_tokens=4)
    ids = [3, 4, 5]
    for _ in range(4):
        ids.append(int(alone(model, ids, 0).argmax()))
    assert list(found.ids) == ids[3:]
    assert model.spec.layout.cache_per_token == 0


def with_own(slot: str, project: Path, change: dict[str, str]) -> Transformer:
    """Return a model with a changed component of those that `zoo plugin new` writes."""
    registry = project / "registry.toml"
    registry.write_text("format = 1\n")
    file, _ = new_plugin(slot, f"own_{slot}", registry)
    text = file.read_text()
    for old, new in change.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    file.write_text(text)
    spec = tiny(**{slot: f"own_{slot}", "position": "rotary"})
    return zoo.build(spec, dtype=torch.float64, registry=load_registry()).eval()


@torch.no_grad()
@pytest.mark.parametrize("slot", ["attention", "block"])
def test_a_new_component_goes_on_from_a_cache(slot: str, project: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        assert check(with_own(slot, project, {})).cache.n_bytes > 0


@torch.no_grad()
@pytest.mark.parametrize(
    ("slot", "change"),
    [("attention", KNOWS_NO_CACHE), ("block", {"def not_incremental": "def _not_incremental"})],
)
def test_a_component_that_knows_no_cache_generates(
    slot: str, change: dict[str, str], project: Path
) -> None:
    model = with_own(slot, project, change)
    with pytest.warns(RecomputeWarning, match=f"{slot} `own_{slot}` cannot use a cache"):
        check(model)


# --- what is kept -------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "values", "n_kept"),
    [
        ("all", heads(n_kv_heads=2), 2 * 2 * 4 * len(ROWS[0])),
        ("window", heads(window=3), 2 * 16 * 2 * 3),
        ("chunk", heads(chunk=2), 2 * 16 * 2 * 2),
        ("latent", {"position": "rotary", "attention": LATENT}, (6 + 4) * len(ROWS[0])),
        ("sparse", {"position": "rotary", "attention": SPARSE_LATENT}, (6 + 4 + 7) * len(ROWS[0])),
    ],
)
def test_no_more_is_kept_than_needed(name: str, values: dict[str, Any], n_kept: int) -> None:
    """The cache holds keys and values of the key-value heads; for a window, twice its tokens, so
    that they are seldom moved; for latent attention, the latent and the rotated key, and the key of
    an indexer. `n_kept` is the number of values per row and layer."""
    assert check(built(tiny(**values))).cache.n_bytes == 8 * n_kept * len(ROWS) * 2


@torch.no_grad()
@pytest.mark.parametrize("attention", ["multi_head", "linear"])
def test_an_encoder_keeps_nothing_also_if_it_is_causal(attention: str) -> None:
    """What `zoo show` tells is what is kept: of the decoder and, for each source token, of the
    memory."""
    values = {**PAIR, "position": "none", "attention": attention, "encoder": {"causal": True}}
    found = {key: v for key, v in (tiny() | values).items() if v is not None}
    model, cache = zoo.build(found).eval(), Cache(4)
    model.decode(torch.ones(1, 4, dtype=torch.long), torch.rand(1, 3, 16), cache=cache)
    told = model.spec.summary()
    of_tokens, of_memory = (
        told[key]["float32"]
        for key in ("kv_cache_bytes_per_token", "kv_cache_bytes_per_source_token")
    )
    assert cache.n_bytes == 4 * of_tokens + 3 * of_memory + told["state_bytes_per_sequence"]


@torch.no_grad()
def test_keys_of_a_memory_are_made_once() -> None:
    model = built({key: v for key, v in (tiny() | PAIR).items() if v is not None})
    made: list[int] = []
    for layer in model.decoder.layers:
        layer.cross_attn.k_proj.register_forward_hook(lambda *_: made.append(1))
    zoo.generate(model, [[3, 4, 5]], start=1, max_new_tokens=5)
    assert len(made) == 2


@torch.no_grad()
@pytest.mark.parametrize(("sharing", "n_layers"), [(True, 2), ([0, 1, 0], 3)])
def test_layers_that_are_one_keep_apart(sharing: bool | list[int], n_layers: int) -> None:
    """A layer that runs twice caches the keys of both runs."""
    model = built(tiny(n_layers=n_layers, decoder={"share_layers": sharing}))
    assert check(model).cache.n_bytes == 8 * 2 * 16 * len(ROWS[0]) * len(ROWS) * n_layers


def test_each_of_two_stacks_has_a_part_of_the_cache() -> None:
    cache, new = Cache(3), torch.zeros(2, 1, 1)
    for name, value in (("left", 1.0), ("right", 2.0)):
        for _ in range(2):
            cache.part(name).past.append(1, seen=None, counted=None, device=new.device)
            cache.part(name).layer(0).of("").extend(torch.tensor([[[value]], [[-value]]]))
    cache.select(torch.tensor([1, 1]))
    for name, value in (("left", 1.0), ("right", 2.0)):
        part = cache.part(name)
        assert part.past.length == 2
        (kept,) = part.layer(0).of("").extend(new)
        assert kept.flatten().tolist() == [-value, -value, 0.0] * 2
    assert cache.n_bytes == 2 * 2 * 3 * 4  # stacks, rows, tokens, bytes


def test_a_full_cache_is_an_error() -> None:
    decoding = Decoding(built(tiny()), capacity=3, memory=None, keep=True)
    decoding.scores(torch.tensor([[1, 2, 3]]))
    with pytest.raises(ValueError, match="room for 3 tokens, not 4"):
        decoding.scores(torch.tensor([[1]]))


def test_a_mask_of_pairs_is_refused_with_a_cache() -> None:
    model = built(tiny())
    with pytest.raises(ValueError, match=r"a mask is \(batch, length\)"):
        model.decode(
            torch.tensor([[1, 2]]),
            target_mask=torch.ones(1, 2, 2, dtype=torch.bool),
            cache=Cache(4),
        )


def left_unfinished(model: Transformer, **options: Any) -> None:
    next(zoo.stream(model, ROWS[:1], max_new_tokens=4, **options))


def interrupted(model: Transformer) -> None:
    def stop(ids: list[int]) -> bool:
        raise KeyError

    with pytest.raises(KeyError):
        zoo.generate(model, ROWS, max_new_tokens=4, stop=stop)


GENERATIONS: dict[str, Callable[[Transformer], object]] = {
    "greedy": lambda model: zoo.generate(model, ROWS, max_new_tokens=4),
    "beams": lambda model: zoo.generate(model, ROWS, max_new_tokens=4, method=zoo.Beam(size=2)),
    "without a cache": lambda model: zoo.generate(model, ROWS, max_new_tokens=4, cache=False),
    "guessed": lambda model: zoo.generate(model, ROWS, max_new_tokens=4, draft=zoo.Draft(model)),
    "left unfinished": left_unfinished,
    "guessed and left": lambda model: left_unfinished(model, draft=zoo.Lookup()),
    "interrupted": interrupted,
}


@pytest.mark.usefixtures("without_cycles_found")
@pytest.mark.parametrize("name", GENERATIONS)
def test_the_memory_of_a_cache_is_free_with_the_end_of_a_generation(name: str) -> None:
    """A service would otherwise hold the keys and values of requests that have long been answered:
    Python looks for cycles by the number of objects, and not by their size."""
    GENERATIONS[name](built(tiny(position="rotary")))
    assert not any(isinstance(one, AttentionCache) for one in gc.get_objects())
