"""Layers that are computed again in the backward pass: the same weights to the last bit, in less
memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import training_tasks as tasks
from breadth import slow
from live_bytes import LiveBytes
from torch.autograd.graph import saved_tensors_hooks
from toy_training import MODEL, RECIPE, write_toy
from trials import Refused

import zoo
from zoo.training.checkpoint_state import checkpoints
from zoo.training.recompute import recompute_layers

pytestmark = pytest.mark.usefixtures("without_pictures")

DEEP = MODEL.replace("n_layers = 1", "n_layers = 3")
EXPERTS = 'ffn = { kind = "moe", n_experts = 4, top_k = 2, auxiliary_loss = 0.5 }\n'
SHARED_KEYS = '[[decoder.layers]]\nat = [1, 2]\nself_attn = "cross_layer"\n'
LATENT = "kv_lora_rank = 8, qk_nope_head_dim = 4, qk_rope_head_dim = 2, v_head_dim = 4"
INDEXER = "index_n_heads = 2, index_head_dim = 4, index_topk = 2"
CHOSEN_KEYS = (
    f'[decoder]\nself_attn = {{ kind = "sparse_latent", {LATENT}, {INDEXER} }}\n'
    f'[[decoder.layers]]\nat = [1]\nself_attn = {{ kind = "shared_sparse_latent", {LATENT} }}\n'
)
MODELS = {
    "dropout": DEEP,
    "experts": DEEP + EXPERTS,
    "running statistics": DEEP + 'norm = "batch_norm"\n',
    "shared keys": DEEP + SHARED_KEYS,
    "chosen keys": DEEP + CHOSEN_KEYS,
    "shared layers": DEEP + "[decoder]\nshare_layers = true\n",
    "learned distances": DEEP + 'position = "t5_buckets"\n',
}
TELLING = ("dropout", "experts", "running statistics")
"""Whose layers draw numbers, leave a loss, and change with each pass."""
AGAIN = RECIPE.replace("average = 2", "average = 2\nrecompute = true")

Kept = Callable[..., tuple[Any, Any]]


@pytest.fixture
def kept(tmp_path: Path, config: Path, request: pytest.FixtureRequest) -> Kept:
    """Return a function that trains a recipe, and returns the digest of the weights and the
    losses."""

    def run(recipe: str, model: str, *, processes: int = 1, resume: bool = False) -> Any:
        path, output = write_toy(tmp_path, recipe, model), tmp_path / "out"
        if not resume:
            shutil.rmtree(output, ignore_errors=True)
        if processes == 1:
            zoo.train(path, output=output, resume=resume)
        else:
            request.getfixturevalue("two")(tasks.trained, path.parent, output)
        told = json.loads((output / "metrics.json").read_text())
        losses = [(one["loss"], one.get("valid_loss")) for one in told["history"]]
        return told["content_digest"], losses

    return run


@pytest.mark.parametrize(
    "model",
    [
        *(pytest.param(MODELS[name], id=name) for name in TELLING),
        *(
            slow(pytest.param(model, id=name))
            for name, model in MODELS.items()
            if name not in TELLING
        ),
    ],
)
def test_losses_and_weights_are_the_same(kept: Kept, model: str) -> None:
    assert kept(AGAIN, model) == kept(RECIPE, model)


@pytest.mark.slow
def test_they_are_the_same_in_bfloat16_and_in_parts(kept: Kept) -> None:
    mixed = 'average = 2\nprecision = "bfloat16"\naccumulate = 2'
    model = MODELS["experts"]
    again = kept(AGAIN.replace("average = 2", mixed), model)
    assert again == kept(RECIPE.replace("average = 2", mixed), model)


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["false", "true"])
def test_they_are_the_same_in_two_processes(kept: Kept, shard: str) -> None:
    model = MODELS["experts"] + SHARED_KEYS
    shared = f"average = 2\naccumulate = 2\nshard = {shard}"
    again = kept(AGAIN.replace("average = 2", shared), model, processes=2)
    assert again == kept(RECIPE.replace("average = 2", shared), model, processes=2)


def test_a_run_that_needs_less_memory_from_a_checkpoint_on(kept: Kept, tmp_path: Path) -> None:
    whole = kept(RECIPE, DEEP)
    shutil.rmtree(checkpoints(tmp_path / "out" / "checkpoints")[-1])
    assert kept(AGAIN, DEEP, resume=True) == whole


def test_a_model_without_layers_has_none_to_compute_again(project: Path, refused: Refused) -> None:
    """Of a builder of one's own: a table of logits, which generates."""
    own = (Path(__file__).parent / "projects" / "own_builder" / "bigram.py").read_text()
    generation = (
        "    @property\n    def generation(self):\n        from zoo.purpose import Generation\n\n"
        "        return Generation(target_vocab=self.vocab)\n\n"
    )
    (project / "bigram.py").write_text(own.replace("    def build(", f"{generation}    def build("))
    (project / "registry.toml").write_text('format = 1\n[builder]\nbigram = "bigram.py:Bigram"\n')
    (project / "lines.txt").write_text("a\nb\nc\n")
    bigram = 'format = 1\nname = "bigram"\nbuilder = "bigram"\nvocab = 300\n'
    recipe = AGAIN.replace('"tsv"', '"text"').replace("toy.tsv", "lines.txt")
    write_toy(project, recipe.replace("valid = 4\n", ""), bigram)
    told = refused("train", "recipe.toml")
    assert "recipe.toml:29:13: error: bigram has no layers that could be computed again" in told


# --- memory -------------------------------------------------------------------------------------

BATCH, LENGTH, WIDTH = 8, 64, 32


def decoder(n_layers: int, further: str = "", *, recomputed: bool) -> zoo.Transformer:
    """A decoder in training, whose gradients are there already."""
    spec = (
        f'format = 1\nname = "deep"\nbuilder = "decoder"\nvocab = 50\nn_layers = {n_layers}\n'
        f'd_model = {WIDTH}\nn_heads = 4\nd_ff = 64\nposition = "rotary"\ndropout = 0.1\n{further}'
    )
    model = zoo.build(spec).train()
    if recomputed:
        recompute_layers(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def loss_of(model: zoo.Transformer) -> torch.Tensor:
    ids = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) % 50
    logits: torch.Tensor = model(ids)
    return logits.logsumexp(-1).mean() + zoo.auxiliary_loss(model)


def saved_bytes(model: zoo.Transformer) -> int:
    """The bytes that the graph of a loss keeps, but for those of weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(model)
    n_bytes = sum(storage.nbytes() for storage in found.values())
    del loss
    return n_bytes


def test_a_layer_keeps_its_input_alone() -> None:
    """Of each further layer, in float32; without computing again it is some 20 times as much."""
    few, many = (saved_bytes(decoder(n, recomputed=True)) for n in (2, 6))
    assert many - few == 4 * BATCH * LENGTH * WIDTH * 4
    few, many = (saved_bytes(decoder(n, recomputed=False)) for n in (2, 6))
    assert many - few > 4 * BATCH * LENGTH * WIDTH * 4 * 20


@pytest.mark.parametrize(
    "further",
    ["", EXPERTS, '[[decoder.layers]]\nevery = 2\nself_attn = "cross_layer"\n'],
    ids=["plain", "experts", "shared keys"],
)
def test_the_backward_pass_has_one_layer_at_a_time(further: str) -> None:
    """What a layer leaves when it is computed again, such as the auxiliary loss, would keep all
    that it was computed from."""
    peaks: dict[tuple[int, bool], int] = {}
    for n_layers in (2, 8):
        for recomputed in (False, True):
            model = decoder(n_layers, further, recomputed=recomputed)
            with LiveBytes() as live:
                loss_of(model).backward()
            peaks[n_layers, recomputed] = live.peak
    grown = peaks[8, True] - peaks[2, True]
    assert grown < 0.15 * (peaks[8, False] - peaks[2, False])
