"""Functions that the processes of a mesh run in tests; `test_mesh.py` compares their results."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import zoo
from zoo.benching.memory import OfProcess
from zoo.sharding import together
from zoo.weights.load_report import LoadReport
from zoo.weights.reader import Weights

T = TypeVar("T")
Shape = dict[str, int]
"""The names of the dimensions of a mesh, with their sizes."""


def mesh_of(shape: Shape) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))


def inputs_of(model: zoo.Transformer) -> tuple[torch.Tensor, ...]:
    """Images, or ids with padding at 0, and a target of a pair or texts to compare; the same in
    every process."""
    random = torch.Generator().manual_seed(0)
    images = model.spec.model.images
    source = torch.randint(1, 20, (2, 7), generator=random)
    target = torch.randint(1, 20, (2, 5), generator=random)
    source[1, 5:] = target[1, 3:] = 0
    for shape in images.values():
        dtype = next(model.parameters()).dtype
        source = torch.randn(2, *shape, generator=random, dtype=dtype)
    both = "image" in images or (hasattr(model, "encode") and hasattr(model, "decode"))
    return (source, target) if both else (source,)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(path: Path, shape: Shape) -> dict[str, float]:
    """Return the largest differences between a sharded model and the same model in one process: of
    outputs, attention maps and, relative to the largest, gradients."""
    model, alone = zoo.load(path, mesh=mesh_of(shape)).eval(), zoo.load(path).eval()
    inputs = inputs_of(alone)
    with torch.no_grad():
        (logits, maps), (expected, expected_maps) = (
            one(*inputs, return_attention=True) for one in (model, alone)
        )
        found = {"logits": gap(logits, expected), "plain": gap(model(*inputs), alone(*inputs))}
    pairs = zip(sum(maps, ()), sum(expected_maps, ()), strict=True)
    found["maps"] = max((gap(a, b) for a, b in pairs), default=0.0)
    for one in (model, alone):
        one(*inputs).square().mean().backward()
    gradients = {name: p.grad for name, p in alone.named_parameters() if p.grad is not None}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    found["gradients"] = max(
        gap(whole(p.grad), gradients[name]) / largest
        for name, p in model.named_parameters()
        if p.grad is not None
    )
    return found


def compare_uncut_head(path: Path, shape: Shape) -> dict[str, float]:
    """`compare` for a model whose map to the vocabulary states no cut."""
    with patch("zoo_components.head.BY_VOCABULARY", None):
        return compare(path, shape)


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    return float((a - b).abs().max())


def per_head(path: Path, shape: Shape) -> float:
    """Return the largest difference of the outputs with a different mask for each head."""
    model, alone = zoo.load(path, mesh=mesh_of(shape)).eval(), zoo.load(path).eval()
    random = torch.Generator().manual_seed(1)
    mask = torch.rand(2, 4, 7, 7, generator=random) < 0.7
    ids = torch.randint(1, 20, (2, 7), generator=random)
    with torch.no_grad():
        return gap(model(ids, target_mask=mask), alone(ids, target_mask=mask))


def generated(path: Path, shape: Shape | None) -> list[list[int]]:
    """Return the ids that a model generates for prompts of different lengths."""
    model = zoo.load(path, mesh=None if shape is None else mesh_of(shape))
    start = {"start": 1} if hasattr(model, "encode") else {}
    inputs = inputs_of(model)[0]
    prompts = inputs if inputs.is_floating_point() else [[5, 6, 7, 8], [9, 3]]
    return [list(one.ids) for one in zoo.generate(model, prompts, max_new_tokens=6, **start)]


def vectors(path: Path, shape: Shape | None) -> list[torch.Tensor]:
    """Return the vectors of images and of texts, and their scores, by a method for each."""
    model: Any = zoo.load(path, mesh=None if shape is None else mesh_of(shape))
    images, texts = inputs_of(model)
    with torch.no_grad():
        of_images, of_texts = model.encode_image(images), model.encode_text(texts)
        return [of_images, of_texts, model.compare(of_images, of_texts)]


def vectors_of_sounds(path: Path, shape: Shape | None) -> torch.Tensor:
    """Return the vectors of spectrograms, which is the first that is asked of the model."""
    model: Any = zoo.load(path, mesh=None if shape is None else mesh_of(shape))
    frames, bands = model.spec.model.spectrogram_shape
    random = torch.Generator().manual_seed(0)
    sounds = torch.randn(2, frames, bands, generator=random, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        found: torch.Tensor = model.encode_sound(sounds)
    return found


def states_in_text(path: Path, shape: Shape | None) -> list[torch.Tensor]:
    """Return what stands in texts for images or for sounds, which is the first that is asked of the
    model."""
    model: Any = zoo.load(path, mesh=None if shape is None else mesh_of(shape))
    how = model.spec.model.generation
    images = how.inserted_images is not None
    sizes = how.inserted_images.shape if images else how.inserted_sounds.shape
    random = torch.Generator().manual_seed(0)
    media = torch.randn(2, *sizes, generator=random, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        return list(model.read_images(media) if images else model.read_sounds(media))


def generated_for_own(
    path: Path, shape: Shape | None, requests: Sequence[Sequence[dict[str, Any]]]
) -> list[list[zoo.Generated]]:
    """Return what a model generates for requests, one after the other. Each is the arguments for
    each process, of which it takes its own."""
    model = zoo.load(path, mesh=None if shape is None else mesh_of(shape))
    return [zoo.generate(model, **own(request)) for request in requests]


def fetched(path: Path, shape: Shape) -> list[int]:
    """Return the number of layers with unsharded weights, while each layer computes."""
    model = zoo.load(path, mesh=mesh_of(shape))
    layers = model.decoder.layers
    found: list[int] = []

    def look(*_: object) -> None:
        weights = [layer.ffn.up_proj.weight for layer in layers]
        found.append(sum(not isinstance(weight, DTensor) for weight in weights))

    for layer in layers:
        layer.ffn.register_forward_hook(look)
    model(*inputs_of(model))
    return found


def learns_after(path: Path, shape: Shape, first: str) -> bool:
    """Return whether there are gradients after a first call in inference mode."""
    model = zoo.load(path, mesh=mesh_of(shape))
    inputs = inputs_of(model)
    if first == "generate":
        start = {"start": 1} if hasattr(model, "encode") else {}
        zoo.generate(model, [5, 6], max_new_tokens=2, **start)
    else:
        with torch.inference_mode():
            model(*inputs)
    model(*inputs).sum().backward()
    return all(parameter.grad is not None for parameter in model.parameters())


def arranged(path: Path, shape: Shape) -> list[int]:
    """Return the ids that a model generates after `arrange_weights`, which packs every matrix."""
    model = zoo.load(path, mesh=mesh_of(shape))
    with patch("zoo.linear.LARGE", 1):
        zoo.arrange_weights(model, rows=1)
        return list(zoo.generate(model, [5, 6, 7, 8], max_new_tokens=6)[0].ids)


def report(path: Path, shape: Shape) -> LoadReport | None:
    """Return what a process has loaded, and its share of each tensor."""
    return zoo.load(path, mesh=mesh_of(shape)).load_report


def shares(path: Path, shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """Return the bytes of the parameters of a process, and the bytes that it has read for them,
    without the modules that the first load imports."""
    mesh = mesh_of(shape)
    zoo.load(path, mesh=mesh, **options)
    before = n_read()
    model = zoo.load(path, mesh=mesh, **options)
    read = n_read() - before
    return {"bytes": n_bytes(model), "read": read, "report": model.load_report}


def values(path: Path, shape: Shape, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return all tensors of a loaded model, gathered from their shards."""
    model = zoo.load(path, mesh=mesh_of(shape), **options)
    return {name: whole(tensor.detach()).clone() for name, tensor in model.state_dict().items()}


def built(spec: str, shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    """Return all tensors of a built model, gathered from their shards, whose bytes must have been
    reported."""
    told: list[int] = []
    model = zoo.build(spec, mesh=mesh_of(shape), seed=seed, on_bytes=told.append)
    assert sum(told) == n_bytes(model)
    return {name: whole(tensor.detach()).clone() for name, tensor in model.state_dict().items()}


def tied(path: Path, shape: Shape) -> list[list[str]]:
    """Return the groups of names that are one parameter."""
    model = zoo.load(path, mesh=mesh_of(shape))
    model(*inputs_of(model)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return sorted(group for group in names.values() if len(group) > 1)


def refused(shape: Shape, paths: Sequence[Path], *options: dict[str, Any]) -> str:
    """Return the error of a refused load. From several paths or options, each process takes its
    own."""
    mesh = mesh_of(shape)
    try:
        zoo.load(own(paths), mesh=mesh, **own(options))
    except (zoo.ZooError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def own(items: Sequence[T]) -> T:
    """Return the item of this process; the last one if there are more processes."""
    return items[min(torch.distributed.get_rank(), len(items) - 1)]


def refused_in(folders: list[Path], shape: Shape, path: Path) -> str:
    """Return the error of a refused load, with a working directory for each process."""
    before = Path.cwd()
    os.chdir(own(folders))
    try:
        return refused(shape, [path], {})
    finally:
        os.chdir(before)


exchanges: list[object] = []
"""One item for each exchange of the processes in `loaded_by_name`."""


def loaded_by_name(project: Path, homes: Sequence[Path]) -> str:
    """Return the path of the weights of the published model `small.v1`, or the error. Each process
    takes its own store."""
    gathered = together.gathered

    def counted(own: list[Any], mesh: DeviceMesh) -> list[Any]:
        items = gathered(own, mesh)
        exchanges.append(items)
        return items

    before = Path.cwd()
    os.chdir(project)
    try:
        with (
            patch.dict(os.environ, {"ZOO_HOME": str(own(homes))}),
            patch.object(together, "gathered", counted),
            patch.object(together, "_TOLD", 0.01),
        ):
            return zoo.load("small.v1", mesh=mesh_of({"fsdp": 2})).load_report.path
    except zoo.ZooError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        os.chdir(before)


def refused_unnamed(path: Path) -> str:
    """Return the error for a mesh without names."""
    try:
        zoo.load(path, mesh=init_device_mesh("cpu", (2,)))
    except zoo.ZooError as error:
        return str(error)
    return "nothing"


def refused_meanwhile(path: Path, shape: Shape) -> str:
    """Return the error for a file that is written to while it is read."""
    read_part = Weights.read_part

    def read(weights: Weights, *where: Any) -> None:
        read_part(weights, *where)
        os.utime(weights.files[0].place.file)

    with patch.object(Weights, "read_part", read):
        return refused(shape, [path], {"verify": False})


def refused_elsewhere(path: Path) -> list[str]:
    """Return the errors of loading and of building for a mesh of only the first process."""
    mesh = DeviceMesh("cpu", [0], mesh_dim_names=("tp",))
    told = ["nothing"] * 2
    for number, make in enumerate(
        (partial(zoo.load, path), partial(zoo.build, zoo.load(path).spec))
    ):
        try:
            make(mesh=mesh)
        except zoo.ZooError as error:
            told[number] = str(error)
    return told


def refused_to_save(path: Path, shape: Shape, to: Path) -> str:
    """Return the error of saving a shard."""
    model = zoo.load(path, mesh=mesh_of(shape))
    try:
        zoo.save(model, to)
    except zoo.ZooError as error:
        return str(error)
    return "nothing"


def outside(path: Path, shape: Shape) -> list[str]:
    """Return the error of a model for ids that are not in its vocabulary."""
    model = zoo.load(path, mesh=mesh_of(shape))
    told = []
    for ids in ([[1, 10**6]], [[1, 23]], [[-1, 1]]):
        try:
            model(torch.tensor(ids))
        except IndexError as error:
            told.append(str(error))
    return told


def peak(first: Path, path: Path, shape: Shape, spec: str | None) -> float:
    """Return the peak memory of a process for a sharded model, divided by the bytes of its shard.
    The small model `first` is loaded before, so that memory that torch allocates once is not
    counted."""
    mesh = mesh_of(shape)
    zoo.load(first, mesh=mesh)
    gc.collect()
    meter = OfProcess()
    before = meter.start()
    model = zoo.load(path, mesh=mesh) if spec is None else zoo.build(spec, mesh=mesh)
    return (meter.peak() - before) / n_bytes(model)


def n_bytes(model: zoo.Transformer) -> int:
    local = (t.to_local() if isinstance(t, DTensor) else t for t in model.parameters())
    return sum(tensor.nbytes for tensor in local)


def n_read() -> int:
    """Return the bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def train_and_generate(path: Path, sharded: str) -> list[bool]:
    """Shard a model by torch's `fully_shard`, and return whether it generates what the model alone
    does, before and after a step of training."""
    model = zoo.load(path)
    asked: dict[str, Any] = {"max_new_tokens": 4}
    if hasattr(model, "encode"):
        asked["start"] = 1
    expected = zoo.generate(model, [[5, 6, 7]], **asked)
    mesh = mesh_of({"fsdp": 2})
    if "layers" in sharded:
        for name in model.spec.layout.layers():
            fully_shard(model.get_submodule(name), mesh=mesh)
    if "root" in sharded:
        fully_shard(model, mesh=mesh)
    found = []
    for _ in range(2):
        found.append(zoo.generate(model, [[5, 6, 7]], **asked) == expected)
        model(*inputs_of(model)).square().mean().backward()
    return found
