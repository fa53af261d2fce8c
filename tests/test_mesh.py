"""A model that is distributed over processes is the same model, and each process has only its
part."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mesh_tasks as tasks
import pytest
import torch
from breadth import one_then_slow
from published_models import entry, register, weights, write_files
from random_values import add_noise
from ranks import Ranks, ranks
from small_specs import EXAMPLES, TINY, TINY_DUAL, TINY_IMAGE_TEXT, TINY_SOUND_TEXT, small
from trials import python

import zoo
from zoo.weights.reader import open_weights

DECODER: dict[str, Any] = {
    "format": 1,
    "name": "decoder",
    "builder": "decoder",
    "vocab": 23,
    "n_layers": 2,
    "d_model": 32,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_ff": 24,
    "ffn": "glu",
    "norm": "rms_norm",
    "position": "rotary",
    "attention": {"kind": "multi_head", "qk_norm": "rms_norm"},
    "head": {"kind": "linear", "tied": True},
}
"""Grouped queries with norms, and an odd vocabulary size."""
TRANSLATOR: dict[str, Any] = {
    "format": 1,
    "name": "translator",
    "builder": "encoder_decoder",
    "source_vocab": 23,
    "target_vocab": 23,
    "share_embeddings": True,
    "pad_id": 0,
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 24,
    "position": "t5_buckets",
    "head": {"kind": "linear", "tied": True},
}
CAPTIONER: dict[str, Any] = {
    "format": 1,
    "name": "captioner",
    "builder": "encoder_decoder",
    "target_vocab": 23,
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 24,
    "encoder": {
        "embedding": {"kind": "patches", "image_size": 6, "patch_size": 2},
        "position": {"kind": "learned", "max_length": 10},
    },
}
SOUNDS: dict[str, Any] = {
    "format": 1,
    "name": "sounds",
    "builder": "encoder",
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 24,
    "embedding": {
        "kind": "spectrogram_patches",
        "n_features": 5,
        "n_frames": 8,
        "patch_size": 3,
        "feature_stride": 2,
        "frame_stride": 3,
    },
    "position": {"kind": "learned", "max_length": 6},
    "head": "none",
}
KINDS = pytest.mark.parametrize(
    "spec", [DECODER, TRANSLATOR, CAPTIONER], ids=lambda spec: str(spec["name"])
)
FSDP, TP = {"fsdp": 2}, {"tp": 2}
MESHES = pytest.mark.parametrize("mesh", [FSDP, TP], ids=["fsdp", "tp"])


def saved(
    folder: Path, spec: dict[str, Any], dtype: torch.dtype = torch.float64, **options: Any
) -> Path:
    """Save a model with random values in all tensors, including biases."""
    zoo.save(add_noise(zoo.build(spec, dtype=dtype), 0.1), folder / "model", **options)
    return folder / "model"


def cannot_be_cut(spec: dict[str, Any]) -> bool:
    """Return whether the model has only one key-value head, which two processes cannot share."""
    return any(cut.units == 1 for _, cut in zoo.read_spec(spec).layout.cuts())


@MESHES
@KINDS
def test_the_same_logits_and_gradients(
    two: Ranks, tmp_path: Path, spec: dict[str, Any], mesh: dict[str, int]
) -> None:
    for difference in two(tasks.compare, saved(tmp_path, spec), mesh):
        assert max(difference.values()) < 1e-10
    for difference in two(tasks.compare, saved(tmp_path, spec, torch.float32), mesh):
        assert max(difference["logits"], difference["plain"]) < 1e-5


def test_a_table_tied_to_what_is_whole_is_whole(two: Ranks, tmp_path: Path) -> None:
    path = saved(tmp_path, DECODER)
    for difference in two(tasks.compare_uncut_head, path, TP):
        assert max(difference.values()) < 1e-10


def architectures() -> list[Any]:
    """Return the example models, one of each group that differs only in size."""
    found: dict[str, Any] = {}
    for path in EXAMPLES:
        if path.parent.name == "models":
            spec = small(path)
            found.setdefault(str({**spec, "name": ""}), pytest.param(spec, id=path.stem))
    return list(found.values())


@MESHES
@pytest.mark.parametrize("spec", one_then_slow(architectures()))
def test_every_architecture(
    two: Ranks, tmp_path: Path, spec: dict[str, Any], mesh: dict[str, int]
) -> None:
    if mesh == TP and cannot_be_cut(spec):
        message = two(tasks.refused, mesh, [saved(tmp_path, spec)], {})[1]
        assert "has 1 heads or hidden units, which 2 processes" in message
        return
    for difference in two(tasks.compare, saved(tmp_path, spec), mesh):
        assert max(difference.values()) < 1e-10, difference


CUT: dict[str, dict[str, Any]] = {
    "gates and sinks": {
        "attention": {
            "kind": "multi_head",
            "output_gate": "sigmoid",
            "output_gate_scope": "head",
            "output_gate_bias": "head",
            "sinks": True,
        }
    },
    "latent": {
        "attention": {
            "kind": "latent",
            "q_lora_rank": 12,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 5,
        }
    },
    "latent, of few keys": {
        "attention": {
            "kind": "sparse_latent",
            "q_lora_rank": 12,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 5,
            "index_n_heads": 3,
            "index_head_dim": 6,
            "index_topk": 2,
        }
    },
    "forgetting": {"position": "alibi", "attention": {"kind": "forgetting", "n_kv_heads": 2}},
    "a learned function of distances": {"position": "fire"},
    "linear attention": {"position": "sinusoidal", "attention": {"kind": "linear"}},
    "latent, with distances": {
        "position": "alibi",
        "attention": {
            "kind": "latent",
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 5,
        },
    },
    "experts": {
        "ffn": {
            "kind": "moe",
            "n_experts": 3,
            "top_k": 2,
            "shared_d_ff": 10,
            "shared_gate": True,
        }
    },
    "experts with norms": {
        "ffn": {"kind": "normed_moe", "n_experts": 3, "top_k": 2, "shared_d_ff": 10}
    },
    "inputs of layers": {
        "embedding": {"kind": "layered_tokens", "d_layer_input": 6},
        "block": "layer_input",
    },
    "parts that layers share": {
        "attention": {"kind": "adapted_multi_head", "n_kv_heads": 2, "adapter_rank": 3},
        "ffn": {"kind": "adapted_glu", "adapter_rank": 3},
        "decoder": {"share_layers": True, "share_parts": ["self_attn", "ffn"]},
    },
    "residual streams": {"block": {"kind": "hyper_connected", "n_streams": 2}},
    "residual streams with gates": {
        "block": {"kind": "manifold_hyper_connected", "merge": "weighted"}
    },
}


def on_meshes(cases: Iterable[str]) -> list[Any]:
    """Every case where heads and hidden units are cut; where tensors are also cut as they come, of
    whatever kind the component is, the first."""
    first, *others = cases
    further = {"fsdp": FSDP, "both": {"fsdp": 1, "tp": 2}}
    sharded = [
        pytest.param(case, mesh, id=f"{case}-{name}", marks=marks)
        for case, marks in ((first, ()), *((other, pytest.mark.slow) for other in others))
        for name, mesh in further.items()
    ]
    return [*(pytest.param(case, TP, id=f"{case}-tp") for case in (first, *others)), *sharded]


def check_as_one_process(two: Ranks, path: Path, mesh: dict[str, int]) -> None:
    """Outputs, gradients and masks for single heads are those of one process, and so is text."""
    for difference in two(tasks.compare, path, mesh):
        assert max(difference.values()) < 1e-10, difference
    assert max(two(tasks.per_head, path, mesh)) < 1e-10
    assert two(tasks.generated, path, mesh) == [tasks.generated(path, None)] * 2


@pytest.mark.parametrize(("case", "mesh"), on_meshes(CUT))
def test_heads_and_experts_of_every_kind(
    two: Ranks, tmp_path: Path, case: str, mesh: dict[str, int]
) -> None:
    spec = {**DECODER, **CUT[case]}
    if spec["attention"]["kind"] != "multi_head":
        del spec["n_kv_heads"]
    path = saved(tmp_path, spec)
    check_as_one_process(two, path, mesh)
    report = two(tasks.report, path, mesh)[0]
    whole = {row.name for row in report.tensors if row.share == row.shape}
    parts = ("sinks", "gate_bias", "experts.up", "inputs.tokens", "layer_input.gate")
    assert not any(part in name for name in whole for part in parts)


def test_what_is_whole_in_one_component_and_cut_in_another(two: Ranks, tmp_path: Path) -> None:
    """Heads or hidden units with one norm over all of them are whole. Biases of distances and masks
    for single heads are for all heads, of which each process has some."""
    mixed = DECODER | {
        "name": "mixed",
        "position": "alibi",
        "attention": {"kind": "multi_head", "window": 4},
        "decoder": {
            "layers": [
                {
                    "at": [0],
                    "block": {
                        "self_attn": {
                            "kind": "multi_head",
                            "qk_norm_scope": "full",
                            "qk_norm": "rms_norm",
                        }
                    },
                },
                {"at": [1], "block": {"ffn": {"kind": "glu", "sub_norm": "rms_norm"}}},
            ]
        },
    }
    path = saved(tmp_path, mixed)
    for difference in two(tasks.compare, path, TP):
        assert max(difference.values()) < 1e-10
    report = two(tasks.report, path, TP)[0]
    cut = {row.name for row in report.tensors if row.share != row.shape}
    layers = [{name for name in cut if f"layers.{number}." in name} for number in (0, 1)]
    assert {name.split(".")[3] for name in layers[0]} == {"ffn"}
    assert {name.split(".")[3] for name in layers[1]} == {"self_attn"}
    assert max(two(tasks.per_head, path, TP)) < 1e-10


@MESHES
@pytest.mark.parametrize("kind", ["differential", "talking_heads"])
def test_attention_whose_heads_need_each_other_is_whole(
    two: Ranks, tmp_path: Path, mesh: dict[str, int], kind: str
) -> None:
    path = saved(tmp_path, {**DECODER, "attention": kind})
    check_as_one_process(two, path, mesh)


SHARING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "both cut": ({}, {}),
    "cut, for a whole one": ({}, {"qk_norm_scope": "full"}),
    "whole, for a cut one": ({"qk_norm_scope": "full"}, {}),
    "both whole": ({"qk_norm_scope": "full"}, {"qk_norm_scope": "full"}),
}
"""Options of a layer, and of the next one, which attends to its keys and values."""


@pytest.mark.parametrize(("case", "mesh"), on_meshes(SHARING))
def test_keys_of_another_layer(two: Ranks, tmp_path: Path, case: str, mesh: dict[str, int]) -> None:
    first, second = SHARING[case]
    layers = [
        {"at": [0], "self_attn": {"kind": "multi_head", "qk_norm": "rms_norm", **first}},
        {"at": [1], "self_attn": {"kind": "cross_layer", "qk_norm": "rms_norm", **second}},
    ]
    spec = {**DECODER, "decoder": {"layers": layers}}
    del spec["attention"]
    path = saved(tmp_path, spec)
    check_as_one_process(two, path, mesh)
    report = two(tasks.report, path, mesh)[0]
    cut = {row.name for row in report.tensors if row.share != row.shape}
    expected = ["qk_norm_scope" not in options for options in (first, second)]
    if mesh == TP:
        names = [f"decoder.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)]
        assert [name in cut for name in names] == expected


@MESHES
def test_the_same_vectors(two: Ranks, tmp_path: Path, mesh: dict[str, int]) -> None:
    """By methods of their own, each of which may be the first to need the weights."""
    path = saved(tmp_path, TINY_DUAL | {"text_vocab": 23})
    expected = tasks.vectors(path, None)
    for found in two(tasks.vectors, path, mesh):
        torch.testing.assert_close(found, expected)


@MESHES
def test_the_same_vectors_of_sounds(two: Ranks, tmp_path: Path, mesh: dict[str, int]) -> None:
    path = saved(tmp_path, SOUNDS)
    expected = tasks.vectors_of_sounds(path, None)
    for found in two(tasks.vectors_of_sounds, path, mesh):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("spec", [TINY_IMAGE_TEXT, TINY_SOUND_TEXT], ids=["images", "sounds"])
def test_the_same_states_in_text(two: Ranks, tmp_path: Path, spec: dict[str, Any]) -> None:
    path = saved(tmp_path, spec)
    expected = tasks.states_in_text(path, None)
    for found in two(tasks.states_in_text, path, FSDP):
        torch.testing.assert_close(found, expected)


@MESHES
@KINDS
def test_the_same_text(
    two: Ranks, tmp_path: Path, spec: dict[str, Any], mesh: dict[str, int]
) -> None:
    path = saved(tmp_path, spec)
    assert two(tasks.generated, path, mesh) == [tasks.generated(path, None)] * 2


@pytest.mark.parametrize("spec", [DECODER, TRANSLATOR], ids=["decoder", "translator"])
def test_each_process_generates_for_rows_of_its_own(
    two: Ranks, tmp_path: Path, spec: dict[str, Any]
) -> None:
    """Other numbers of rows, and of steps: one that has ended still helps the other."""
    path = saved(tmp_path, spec)
    start = {"start": [1]} if "pad_id" in spec else {}
    mine, other = [[5, 6, 7, 8]], [[9, 3], [4, 4, 4]]
    requests = [
        [
            {"ids": mine, "max_new_tokens": 2, **start, **options},
            {"ids": other, "max_new_tokens": 7, **start, **options},
        ]
        for options in (
            {},
            {"method": zoo.Beam(size=2)},
            {"method": zoo.Sampling(seed=1, n_answers=3)},
            {"cache": False},
            {"eos": list(range(3, 11))},  # rows that end leave the batch
        )
    ]
    requests += [request[::-1] for request in requests]
    if not start:
        requests.append([one | {"draft": zoo.Lookup()} for one in requests[0]])
    found = two(tasks.generated_for_own, path, FSDP, requests)
    model = zoo.load(path)
    for rank, answers in enumerate(found):
        expected = [zoo.generate(model, **request[rank]) for request in requests]
        assert [[one.ids for one in answer] for answer in answers] == [
            [one.ids for one in answer] for answer in expected
        ]


def test_weights_are_fetched_layer_by_layer(two: Ranks, tmp_path: Path) -> None:
    path = saved(tmp_path, DECODER | {"n_layers": 3})
    assert two(tasks.fetched, path, FSDP) == [[1, 1, 1]] * 2


@pytest.mark.parametrize("first", ["generate", "forward"])
@pytest.mark.parametrize("spec", [DECODER, TRANSLATOR], ids=["decoder", "translator"])
def test_a_model_learns_after_it_was_used_in_inference_mode(
    two: Ranks, tmp_path: Path, spec: dict[str, Any], first: str
) -> None:
    assert two(tasks.learns_after, saved(tmp_path, spec), FSDP, first) == [True] * 2


@pytest.mark.parametrize("sharded", ["layers and root", "layers", "root"])
@pytest.mark.parametrize("spec", [DECODER, TRANSLATOR], ids=["decoder", "translator"])
def test_a_model_that_torch_has_sharded_generates_and_learns(
    two: Ranks, tmp_path: Path, spec: dict[str, Any], sharded: str
) -> None:
    path = saved(tmp_path, spec)
    assert two(tasks.train_and_generate, path, sharded) == [[True, True]] * 2


@MESHES
def test_shares_are_left_as_they_are_by_arranging(
    two: Ranks, tmp_path: Path, mesh: dict[str, int]
) -> None:
    path = saved(tmp_path, DECODER, torch.float32)
    (alone,) = zoo.generate(zoo.load(path), [5, 6, 7, 8], max_new_tokens=6)
    assert two(tasks.arranged, path, mesh) == [list(alone.ids)] * 2


@MESHES
def test_tied_weights_stay_one(two: Ranks, tmp_path: Path, mesh: dict[str, int]) -> None:
    """Also after a step of training."""
    names = ["decoder.embed.tokens.weight", "encoder.embed.tokens.weight", "head.out.weight"]
    found = two(tasks.tied, saved(tmp_path, TRANSLATOR), mesh)
    assert [[sorted(group) for group in groups] for groups in found] == [[names]] * 2


@MESHES
@pytest.mark.parametrize("options", [{}, {"max_shard_bytes": 3000}], ids=["file", "shards"])
def test_a_process_reads_its_share(
    two: Ranks, tmp_path: Path, mesh: dict[str, int], options: dict[str, Any]
) -> None:
    # Half of the token table is more than two reads.
    wide = DECODER | {"d_model": 256, "d_ff": 1024, "vocab": 5001, "n_layers": 4}
    path = saved(tmp_path, wide, torch.float32, **options)
    header = sum(file.stat().st_size for file in path.iterdir()) - n_bytes(path)
    total = n_bytes(path)
    for file in path.iterdir():
        file.chmod(0o444)  # otherwise mapped
    for share in two(tasks.shares, path, mesh, {"verify": False}):
        assert share["report"].read == "bytes"
        assert share["bytes"] < 0.51 * total
        assert share["bytes"] <= share["read"] < share["bytes"] + header + 200_000
    # To verify, each process reads some other tensors, too.
    read = [share["read"] for share in two(tasks.shares, path, mesh, {})]
    assert 2 * total < sum(read) < 2 * total + 2 * (header + 200_000)
    values = two(tasks.values, path, mesh, {})
    expected = zoo.load(path).state_dict()
    for found in values:
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def n_bytes(path: Path) -> int:
    """Return the number of bytes of the tensors of a saved model."""
    return sum(tensor.nbytes for tensor in zoo.load(path).parameters())


@MESHES
def test_buffers_dtypes_and_initial_values(
    two: Ranks, tmp_path: Path, mesh: dict[str, int]
) -> None:
    path = saved(tmp_path, TINY, torch.float32)
    for options in ({"dtype": torch.bfloat16}, {"only": "encoder.*"}):
        expected = zoo.load(path, **options).state_dict()
        for found in two(tasks.values, path, mesh, options):
            assert {name: tensor.dtype for name, tensor in found.items()} == {
                name: tensor.dtype for name, tensor in expected.items()
            }
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@MESHES
def test_the_same_initial_weights(two: Ranks, mesh: dict[str, int]) -> None:
    """Made in parts, they are bitwise equal to those of a single process."""
    spec = zoo.read_spec(TRANSLATOR | {"d_model": 36, "d_ff": 250, "init": "truncated_normal"})
    expected = zoo.build(spec, seed=7).state_dict()
    for found in two(tasks.built, spec.to_toml(), mesh, 7):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@MESHES
def test_a_changed_byte_is_told_by_all(two: Ranks, tmp_path: Path, mesh: dict[str, int]) -> None:
    """Any of the processes may find it. Without verification, no process reports it."""
    path = saved(tmp_path, DECODER)
    file = path / "model.safetensors"
    sound = file.read_bytes()
    start = 8 + int.from_bytes(sound[:8], "little")
    for at in (start, (start + len(sound)) // 2, len(sound) - 1):
        file.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        one, other = two(tasks.refused, mesh, [path], {})
        assert one == other
        assert one.startswith("WeightsError")
        assert "are not those that were saved" in one
        assert two(tasks.refused, mesh, [path], {"verify": False}) == ["nothing"] * 2


@MESHES
def test_a_copy_of_its_own_is_checked_whole(
    two: Ranks, tmp_path: Path, mesh: dict[str, int]
) -> None:
    """As on machines that each have the files on a disk of their own. A process that reads another
    file cannot check it for others."""
    sound = saved(tmp_path, DECODER)
    copy = tmp_path / "copy"
    shutil.copytree(sound, copy)
    file = copy / "model.safetensors"
    with open_weights(sound) as weights:
        starts = {name: start for name, (_, start) in weights.spans.items()}
    raw = file.read_bytes()
    for name, start in list(starts.items())[:4]:
        file.write_bytes(raw[:start] + bytes([raw[start] ^ 1]) + raw[start + 1 :])
        for paths in ([sound, copy], [copy, sound]):
            for message in two(tasks.refused, mesh, paths, {}):
                assert f"{copy}" in message
                assert f"the bytes of `{name}` are not those that were saved" in message


SLOW_SOURCE = """
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from mesh_tasks import exchanges
from zoo.source import Source, Stream


class Mine(Source):
    kind: Literal["mine"]

    @contextmanager
    def read(self, path, start, access):
        with open("asked", "a") as asked:
            asked.write(path + "\\n")
        before, end = len(exchanges), time.monotonic() + 250
        while len(exchanges) < before + 3:
            if time.monotonic() > end:
                raise OSError("the processes tell each other nothing")
            time.sleep(0.01)
        yield Stream(iter([Path("published", path).read_bytes()]))
"""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Return a project with a model `small.v1`, whose source notes each file that it is asked for,
    and gives it when the processes have told each other three times that it takes long."""
    write_files(tmp_path / "published", {"model.safetensors": weights()})
    register(tmp_path, "small.v1", entry({"kind": "mine"}, {"model.safetensors": weights()}))
    lines = 'format = 1\ncatalog = "models"\n[source]\nmine = "mine.py:Mine"\n'
    (tmp_path / "registry.toml").write_text(lines)
    (tmp_path / "mine.py").write_text(SLOW_SOURCE)
    return tmp_path


@pytest.mark.parametrize("n_stores", [1, 2])
def test_a_model_is_pulled_once_into_each_store(two: Ranks, published: Path, n_stores: int) -> None:
    """Also if it takes longer than a process waits for another: no exchange lasts as long."""
    homes = [published / f"home{number}" for number in range(n_stores)]
    found = two(tasks.loaded_by_name, published, homes)
    for path, home in zip(found, [homes[0], homes[-1]], strict=True):
        assert Path(path).is_relative_to(home), path
    assert (published / "asked").read_text() == "model.safetensors\n" * n_stores


def test_a_model_that_cannot_be_pulled_is_told_by_all(two: Ranks, published: Path) -> None:
    """After one attempt."""
    (published / "published" / "model.safetensors").write_bytes(weights(1))
    told = two(tasks.loaded_by_name, published, [published / "home"])
    for message in told:
        assert message.startswith("SourceError: ")
        assert "has the SHA-256" in message
    assert (published / "asked").read_text() == "model.safetensors\n"


def test_what_one_process_cannot_load_none_does(two: Ranks, tmp_path: Path) -> None:
    """And no process waits for the one that has given up."""
    path = saved(tmp_path, DECODER)
    missing = tmp_path / "missing.safetensors"
    for paths in ([path, missing], [missing, path]):
        for message in two(tasks.refused, FSDP, paths, {}):
            assert message.startswith("WeightsError")
            assert "missing.safetensors" in message
    other = saved(tmp_path / "other", TRANSLATOR)
    for message in two(tasks.refused, FSDP, [path, other], {}):
        assert "do not all have the same weights" in message
    for one, another in (
        ({"verify": True}, {"verify": False}),
        ({"only": "decoder.*"}, {}),
        ({"dtype": torch.float32}, {}),
    ):
        for message in two(tasks.refused, FSDP, [path], one, another):
            assert "do not all have the same weights and arguments" in message
    one, other = two(tasks.refused, FSDP, [path], {}, {"dtype": torch.int64})
    assert other.startswith("TypeError")
    assert one.startswith(f"ZooError: error: another process has failed: {other[:30]}")
    one, other = two(tasks.refused, FSDP, [path], {}, {"device": "gpu"})
    assert one == other
    assert "the device `gpu` cannot be used" in one
    (path / "registry.toml").write_text("wrong")
    for message in two(tasks.refused_in, [tmp_path, path], FSDP, path):
        assert "registry.toml:1:6: error: not TOML" in message
    for message in two(tasks.refused_meanwhile, path, FSDP):
        assert "it was written to while it was read" in message
    assert two(tasks.refused, FSDP, [path], {}) == ["nothing"] * 2


def test_meshes_that_mean_nothing(two: Ranks, tmp_path: Path) -> None:
    path = saved(tmp_path, DECODER)

    def told(shape: dict[str, int], **options: Any) -> str:
        one, other = two(tasks.refused, shape, [path], options)
        assert one == other
        return str(one)

    assert "not `tpp`" in told({"tpp": 2})
    assert "`tp`" in told({"tpp": 2})
    assert "two names for the same" in told({"dp": 2, "fsdp": 1})
    assert "have no names" in two(tasks.refused_unnamed, path)[0]
    assert two(tasks.refused_elsewhere, path) == [
        ["nothing"] * 2,
        ["error: this process is not in the mesh"] * 2,
    ]
    assert "compute on cpu, not on meta" in told(FSDP, device="meta")
    assert told(FSDP, device="gpu").startswith("ZooError: error: the device `gpu` cannot be used: ")
    assert "read as bytes" in told(FSDP, read="mmap")
    assert "no tensor has a name like" in told(FSDP, only="nothing")
    assert told({"dp": 2}) == told({"dp": 2, "tp": 1}) == "nothing"
    three = saved(tmp_path / "three", DECODER | {"n_heads": 3, "n_kv_heads": 3, "head_dim": 8})
    one, other = two(tasks.refused, TP, [three], {})
    assert one == other
    assert "`decoder.layers.0.self_attn.q_proj` has 3 heads or hidden units" in one
    assert "layers.1" not in one
    five = {"kind": "multi_head", "n_heads": 5, "n_kv_heads": 5, "head_dim": 8}
    mixed = {"layers": [{"at": [1], "block": {"self_attn": five}}]}
    spec = DECODER | {"n_heads": 3, "n_kv_heads": 3, "head_dim": 8, "decoder": mixed}
    one, _ = two(tasks.refused, TP, [saved(tmp_path / "mixed", spec)], {})
    assert "`decoder.layers.0.self_attn.q_proj` has 3 heads or hidden units" in one
    assert "`decoder.layers.1.self_attn.q_proj` has 5 heads or hidden units" in one


def test_a_layer_of_several_dtypes_is_not_spread(two: Ranks, tmp_path: Path) -> None:
    """FSDP2 would fail at the first use. Of tensor parallelism, each tensor is by itself."""
    model = zoo.build(DECODER).to(torch.bfloat16)
    norm = "decoder.layers.1.ffn.pre_norm.weight"
    model.get_parameter(norm).data = model.get_parameter(norm).float()
    zoo.save(model, tmp_path / "mixed")
    one, other = two(tasks.refused, FSDP, [tmp_path / "mixed"], {})
    assert one == other
    n_others = sum(name.startswith("decoder.layers.1.") for name in model.spec.tensors) - 1
    told = f"has several dtypes: {n_others} tensors BF16, but `{norm}` F32\n"
    assert f"error: along `fsdp`, `decoder.layers.1` is fetched as one, and {told}" in one
    assert '`--dtype float32`, or in Python `dtype="float32"`' in one
    for mesh, options in ((FSDP, {"dtype": "float32"}), (TP, {})):
        assert two(tasks.refused, mesh, [tmp_path / "mixed"], options) == ["nothing"] * 2
    statistics = zoo.build(TINY)  # in buffers, which FSDP2 does not fetch
    for parameter in statistics.parameters():
        parameter.data = parameter.bfloat16()
    assert statistics.encoder.norm.running_mean.dtype == torch.float32
    zoo.save(statistics, tmp_path / "statistics")
    assert two(tasks.refused, FSDP, [tmp_path / "statistics"], {}) == ["nothing"] * 2


@MESHES
def test_a_dtype_that_cannot_hold_a_value_is_refused(
    two: Ranks, tmp_path: Path, mesh: dict[str, int]
) -> None:
    """By all processes, of which one has the value."""
    model = zoo.build(DECODER)
    name = "decoder.layers.1.ffn.down_proj.weight"
    with torch.no_grad():
        model.get_parameter(name)[0, 0] = 7e4
    zoo.save(model, tmp_path / "wide")
    one, other = two(tasks.refused, mesh, [tmp_path / "wide"], {"dtype": "float16"})
    assert one == other
    assert f"error: 1 value of `{name}` would be infinite in float16\n" in one
    told = two(tasks.refused, mesh, [tmp_path / "wide"], {"dtype": "bfloat16"})
    assert told == ["nothing"] * 2


def test_a_share_is_not_saved_as_a_model(two: Ranks, tmp_path: Path) -> None:
    path = saved(tmp_path, DECODER)
    for message in two(tasks.refused_to_save, path, FSDP, tmp_path / "again"):
        assert "but a share of decoder" in message
    assert not (tmp_path / "again").exists()


@MESHES
def test_ids_outside_the_vocabulary(two: Ranks, tmp_path: Path, mesh: dict[str, int]) -> None:
    for told in two(tasks.outside, saved(tmp_path, DECODER), mesh):
        assert [message.split(";")[0] for message in told] == [
            "the model has 23 tokens, with ids from 0 to 22"
        ] * 3


@MESHES
@pytest.mark.parametrize("made", ["loaded", pytest.param("built", marks=pytest.mark.drill)])
def test_memory(two: Ranks, tmp_path: Path, mesh: dict[str, int], made: str) -> None:
    """For a model of 100 MB, the peak of each of two processes is little more than half of it. The
    whole would be twice as much."""
    spec = DECODER | {"n_heads": 8, "d_model": 512, "d_ff": 2048, "vocab": 10_001, "n_layers": 5}
    spec |= {"ffn": "mlp", "head": {"kind": "linear"}}
    first, path = saved(tmp_path / "first", DECODER, torch.float32), tmp_path / "model"
    if made == "loaded":
        zoo.save(zoo.build(spec), path)
    text = zoo.read_spec(spec).to_toml() if made == "built" else None
    found = two(tasks.peak, first, path, mesh, text)
    assert all(0.8 < share < 1.4 for share in found), found


def test_without_a_mesh_nothing_of_it_is_imported(tmp_path: Path) -> None:
    """Importing torch's distributed tensors takes longer than loading a small model."""
    script = (
        "import sys, zoo\n"
        f"zoo.load({str(saved(tmp_path, DECODER))!r})(__import__('torch').tensor([[1]]))\n"
        "sys.exit('torch.distributed.tensor' in sys.modules)\n"
    )
    python(script)


@pytest.mark.drill
def test_four_processes_hash_every_tensor_and_fail_together(tmp_path: Path) -> None:
    path = saved(tmp_path, DECODER)
    with open_weights(path) as weights:
        starts = {name: start for name, (_, start) in weights.spans.items()}
    raw = bytearray((path / "model.safetensors").read_bytes())
    for start in starts.values():
        raw[start] ^= 1
    (path / "model.safetensors").write_bytes(raw)
    with ranks(4, tmp_path) as four:
        told = "".join(four(tasks.refused, {"fsdp": 2, "tp": 2}, [path], {}))
        one, several = (
            four(tasks.refused, {"fsdp": 2, "tp": 2}, paths, {"verify": False})
            for paths in ([tmp_path / "missing", path], [path, tmp_path / "missing"])
        )
    assert [name for name in starts if f"the bytes of `{name}`" not in told] == []
    assert len({*one, *several}) == 1, (one, several)  # what several tell is told once
    assert one[0].count("no model") == 1


@pytest.mark.drill
def test_two_dimensions(tmp_path: Path) -> None:
    """Four processes have rows of parts of tensors."""
    with ranks(4, tmp_path) as four:
        for spec in (DECODER, TRANSLATOR):
            path = saved(tmp_path / spec["name"], spec)
            for mesh in ({"fsdp": 2, "tp": 2}, {"dp": 4}):
                for difference in four(tasks.compare, path, mesh):
                    assert max(difference.values()) < 1e-10
                expected = zoo.load(path).state_dict()
                for found in four(tasks.values, path, mesh, {}):
                    assert all(torch.equal(found[n], tensor) for n, tensor in expected.items())
