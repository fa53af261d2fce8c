"""Properties of every build, whatever its components are."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from breadth import one_then_slow
from small_specs import EXAMPLES, small
from torch import nn
from trials import python

import zoo
from zoo.building import build_on_meta
from zoo.component import Component
from zoo.layout import Layout, vector
from zoo.layout import Tensor as Described
from zoo.slots import Builder
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo_components.initial import NormalInit

MAKE: dict[str, Callable[[], Transformer]] = {}


class Given(Builder):
    """A builder whose module, layout and ties are set by a test."""

    def ties(self) -> dict[str, str]:
        return TIES

    def layout(self) -> Layout:
        return LAYOUT

    def build(self) -> Transformer:
        return MAKE["model"]()


LAYOUT = Layout({"a": vector(3, value=2.0), "b": vector(3, value=4.0)})
TIES: dict[str, str] = {}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModelSpec]:
    """Return a spec whose builder makes the module that `fill_in` has set up."""

    def make(
        fill_in: Callable[[Any], None],
        layout: Layout = LAYOUT,
        ties: dict[str, str] | None = None,
    ) -> ModelSpec:
        def model() -> Transformer:
            module = Transformer()
            fill_in(module)
            return module

        monkeypatch.setitem(MAKE, "model", model)
        monkeypatch.setitem(globals(), "LAYOUT", layout)
        monkeypatch.setitem(globals(), "TIES", ties or {})
        builder: Component = Given(kind="given", init=NormalInit(kind="normal"))
        assert isinstance(builder, Given)
        return ModelSpec("given", builder)

    return make


Make = Callable[..., ModelSpec]


def two(model: Any) -> None:
    model.a, model.b = nn.Parameter(torch.empty(3)), nn.Parameter(torch.empty(3))


def test_the_module_gets_the_values_that_its_layout_describes(given: Make) -> None:
    model = zoo.build(given(two))
    assert model.state_dict()["a"].tolist() == [2.0] * 3
    assert model.state_dict()["b"].tolist() == [4.0] * 3
    assert isinstance(model.a, nn.Parameter)


def test_one_parameter_under_two_attributes_of_a_module(given: Make) -> None:
    def tied(model: Any) -> None:
        two(model)
        model.c = model.a

    layout = Layout({**LAYOUT.parts, "c": vector(3, value=2.0)})
    model = zoo.build(given(tied, layout, {"c": "a"}))
    assert model.c is model.a
    assert model.c.tolist() == [2.0] * 3


def test_a_frozen_parameter_stays_frozen(given: Make) -> None:
    def frozen(model: Any) -> None:
        two(model)
        model.a.requires_grad_(False)

    model = zoo.build(given(frozen))
    assert (model.a.requires_grad, model.b.requires_grad) == (False, True)


def test_buffers_are_filled_or_computed(given: Make) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.empty(4), persistent=False)

        def reset_buffers(self, *, device: torch.device | str) -> None:
            self.table = torch.arange(4.0, device=device)

    def build(model: Any) -> None:
        model.register_buffer("a", torch.empty(3))
        model.register_buffer("b", torch.empty(3, dtype=torch.int64))
        model.inner = Table()

    parts = {
        "a": Described((3,), "constant", value=2.0, buffer=True),
        "b": Described((3,), "constant", value=4.0, buffer=True, dtype="int64"),
    }
    model = zoo.build(given(build, Layout(parts)))
    assert model.a.tolist() == [2.0] * 3
    assert model.b.tolist() == [4] * 3
    assert model.b.dtype is torch.int64
    assert model.inner.table.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_buffer_that_nobody_fills(given: Make) -> None:
    def build(model: Any) -> None:
        two(model)
        model.register_buffer("table", torch.empty(3), persistent=False)

    with pytest.raises(zoo.PluginError, match="buffers table are not stored"):
        zoo.build(given(build))


LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shape": (lambda m: setattr(m, "b", nn.Parameter(torch.empty(4))), "`b` is a float parameter"),
    "scalar": (lambda m: setattr(m, "b", nn.Parameter(torch.empty(()))), "float parameter []"),
    "more": (lambda m: setattr(m, "c", nn.Parameter(torch.empty(1))), "absent in the layout"),
    "fewer": (lambda m: delattr(m, "b"), "`b` is absent in the module"),
    "buffer": (
        lambda m: (delattr(m, "b"), m.register_buffer("b", torch.empty(3))),
        "`b` is a float buffer [3] in the module and a float parameter [3] in the layout",
    ),
    "dtype": (
        lambda m: setattr(
            m, "b", nn.Parameter(torch.empty(3, dtype=torch.int64), requires_grad=False)
        ),
        "`b` is a int64 parameter [3] in the module and a float parameter [3] in the layout",
    ),
    "tied": (
        lambda m: setattr(m, "b", m.a),
        "`b` is tied to a in the module and to nothing in the spec",
    ),
    "state": (lambda m: setattr(type(m), "get_extra_state", lambda self: 1), "extra state"),
}


@pytest.mark.parametrize(("lie", "message"), LIES.values(), ids=LIES)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_layout_that_is_not_what_is_built(
    lie: Callable[[Any], Any], message: str, device: str, given: Make
) -> None:
    def build(model: Any) -> None:
        model.__class__ = type("Mine", (Transformer,), {})
        two(model)
        lie(model)

    with pytest.raises(zoo.PluginError) as caught:
        zoo.build(given(build), device=device)
    assert message in str(caught.value)


def test_ties_that_pair_otherwise(given: Make) -> None:
    """The stored names and shapes are those of the spec, but other tensors are tied."""

    def build(model: Any) -> None:
        two(model)
        model.c, model.d = model.b, model.a

    parts = {name: vector(3) for name in "abcd"}
    spec = given(build, Layout(parts), {"c": "a", "d": "b"})
    with pytest.raises(
        zoo.PluginError, match="`c` is tied to b in the module and to a in the spec"
    ):
        zoo.build(spec)


def test_what_modules_draw_is_left_out_on_the_meta_device_only(given: Make) -> None:
    tables: list[torch.Tensor] = []

    def build(model: Any) -> None:
        two(model)
        nn.init.normal_(model.a)
        nn.init.orthogonal_(torch.empty(3, 3, device="cpu"))
        tables.append(nn.init.uniform_(torch.full((100,), 9.0, device="cpu")))

    assert zoo.build(given(build)).a.tolist() == [2.0] * 3
    assert tables[0].max() < 1.0


SMALL = {
    "format": 1,
    "name": "small",
    "builder": "encoder_decoder",
    "source_vocab": 9,
    "target_vocab": 9,
    "n_layers": 1,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 8,
}


def test_a_build_leaves_torch_as_it_was() -> None:
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    zoo.build(SMALL, dtype=torch.float16)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() is dtype
    assert torch.empty(1).device.type == "cpu"


def test_a_build_that_fails_leaves_torch_as_it_was(given: Make) -> None:
    def build(model: Any) -> None:
        raise ValueError("no")

    with pytest.raises(zoo.PluginError, match="ValueError: no"):
        zoo.build(given(build), dtype=torch.float16)
    assert torch.get_default_dtype() is torch.float32
    assert torch.empty(1).device.type == "cpu"


def test_builds_in_several_threads_keep_their_dtypes_apart() -> None:
    """torch's default dtype, which modules use for their tensors, is that of the whole process."""
    spec = zoo.read_spec(SMALL)
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

    def build(dtype: torch.dtype) -> set[torch.dtype]:
        models = [build_on_meta(spec, dtype) for _ in range(10)]
        return {tensor.dtype for model in models for tensor in model.parameters()}

    try:
        with ThreadPoolExecutor(len(dtypes)) as pool:
            assert list(pool.map(build, dtypes)) == [{dtype} for dtype in dtypes]
        assert torch.get_default_dtype() is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, "0", None])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_no_seed(seed: Any, device: str) -> None:
    with pytest.raises(zoo.InputError, match=f"`seed` is an integer from 0 .*, not {seed!r}"):
        zoo.build(SMALL, seed=seed, device=device)


def test_a_seed_of_numpy_is_a_seed() -> None:
    one, same = (zoo.build(SMALL, seed=seed).state_dict() for seed in (3, np.int64(3)))
    assert all(torch.equal(one[name], same[name]) for name in one)


def test_on_the_meta_device_there_are_shapes_and_no_values() -> None:
    model = zoo.build(SMALL, device="meta")
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
    assert {n: t.shape for n, t in model.state_dict().items()} == {
        n: t.shape for n, t in zoo.build(SMALL).state_dict().items()
    }


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_is_told(device: str, tmp_path: Path) -> None:
    told = f"^error: the device `{device}` cannot be used: "
    with pytest.raises(zoo.ZooError, match=told):
        zoo.build(SMALL, device=device)
    zoo.save(zoo.build(SMALL), tmp_path / "m.safetensors")
    with pytest.raises(zoo.ZooError, match=told):
        zoo.load(tmp_path / "m.safetensors", device=device)


def test_a_model_that_does_not_fit_into_memory(given: Make) -> None:
    def build(model: Any) -> None:
        model.a = nn.Parameter(torch.empty(1 << 56))

    spec = given(build, Layout({"a": vector(1 << 56)}))
    with pytest.raises(zoo.ZooError, match=r"does not fit into memory.* 288,230,376,151,711,744 b"):
        zoo.build(spec)
    assert build_on_meta(spec, torch.float32).get_parameter("a").numel() == 1 << 56


IMPORTS = """
import sys, zoo
zoo.build(%r)
print(*(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
"""


def test_a_build_imports_no_compiler() -> None:
    """Importing torch's compiler takes longer than building most models."""
    assert python(IMPORTS % SMALL) == "\n"


@pytest.mark.parametrize("path", one_then_slow(EXAMPLES), ids=lambda path: path.stem)
def test_a_model_of_shipped_components_can_be_pickled(path: Path) -> None:
    """As it is given to a process that is spawned."""
    model = zoo.build(small(path))
    again = pickle.loads(pickle.dumps(model))
    assert again.spec == model.spec
    before, after = (one.state_dict(keep_vars=True) for one in (model, again))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    places = {(name, other) for name in before for other in before if before[name] is before[other]}
    assert all(after[name] is after[other] for name, other in places)


def test_the_calls_of_a_model_are_typed(tmp_path: Path) -> None:
    """The package ships its types, so type checkers must accept the code of the docs."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "import zoo\n"
        'model = zoo.load("m", device="cpu")\n'
        "ids = torch.tensor([[1, 2]])\n"
        "memory = model.encode(ids, source_mask=None)\n"
        "print(model(ids, ids), model.decode(ids, memory), model.spec.digest)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    root = Path(zoo.__file__).parents[1]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
