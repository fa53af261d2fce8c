"""Linear maps: their implementations agree, and packed weights are never stale."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from processors import taken_for
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils.parametrize import register_parametrization
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.linear import Linear, activated, together
from zoo.machine.prepacking import (
    HAS_BAGS,
    ONEDNN_DTYPES,
    WIDTH,
    FixedRows,
    Transposed,
    product,
)
from zoo_components.modules.dropout import Dropout

ONEDNN = "mkldnn::_linear_pointwise"
PACKED_BY_MKL = "mkl::_mkl_linear"
BAG = "aten::embedding_bag"
ROWS = 4
"""For oneDNN's layout, where a test does not ask for another."""

SHAPES = [(5,), (1, 5), (7, 5), (2, 1, 5), (1, 3, 5), (2, 3, 5), (2, 3, 4, 5), (0, 5), (2, 0, 5)]

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch comes without oneDNN"
)


@pytest.fixture(autouse=True)
def of_any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat small maps as large, except in tests of that limit; and all processors as one kind."""
    taken_for(monkeypatch, intel=False)
    if request.function is not test_what_is_too_small_for_onednn:
        monkeypatch.setattr("zoo.linear.LARGE", 1)
        monkeypatch.setattr("zoo.linear.MANY_ROWS", 1)


class Called(TorchDispatchMode):
    """Records the operators that run in its block."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def called(run: Callable[[], object]) -> int:
    """Return the number of products that oneDNN, or a bag, computes in a run."""
    with Called() as found:
        run()
    return found.names.count(ONEDNN) + found.names.count(BAG)


def made(n_in: int = 5, n_out: int = 6, *, bias: bool = True) -> Linear:
    torch.manual_seed(0)
    return Linear(n_in, n_out, bias=bias)


def exact(f: Linear, x: torch.Tensor) -> torch.Tensor:
    """Compute the map in float64 by plain PyTorch."""
    bias = None if f.bias is None else f.bias.double()
    return F.linear(x.double(), f.weight.double(), bias)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [None, 1, ROWS])
def test_it_is_the_map(shape: tuple[int, ...], bias: bool, rows: int | None) -> None:
    f, x = made(bias=bias), torch.randn(shape)
    if rows is not None:
        f.pack(rows)
    with torch.inference_mode():
        assert called(lambda: f(x)) == (x.numel() > 0)
        close(f(x), exact(f, x))
        if x.dim() > 1:  # rows that are not contiguous
            close(
                f(x.expand(2, *shape).transpose(0, 1)),
                exact(f, x.expand(2, *shape)).transpose(0, 1),
            )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_out", [1, WIDTH - 1, WIDTH, WIDTH + 1, 3 * WIDTH + 7])
def test_one_row_of_a_map_with_several_bags(n_out: int, bias: bool) -> None:
    maps, x = [made(33, n_out, bias=bias), made(33, 50, bias=not bias)], torch.randn(1, 1, 33)
    activation = torch.nn.GELU(approximate="tanh")
    for f in maps:
        f.pack(1)
    with torch.inference_mode(), Called() as run:
        close(maps[0](x), exact(maps[0], x))
        close(activated(maps[0], activation, x), activation(exact(maps[0], x)))
        for f, found in zip(maps, together(maps, x), strict=True):
            close(found, exact(f, x))
    assert (run.names.count(BAG), run.names.count(ONEDNN)) == (3 * HAS_BAGS, 3 * (not HAS_BAGS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_one_row_in_half_precision(bias: bool, dtype: torch.dtype) -> None:
    """Sums are in float32, and rounded once."""
    maps = [made(300, 50, bias=bias).to(dtype), made(300, 60, bias=not bias).to(dtype)]
    x = torch.randn(1, 300).to(dtype)
    for f in maps:
        f.pack(1)
    with torch.inference_mode(), Called() as run:
        alone, joined = maps[0](x), together(maps, x)
    assert run.names.count(BAG) == 2 * HAS_BAGS
    for f, found in zip((maps[0], *maps), (alone, *joined), strict=True):
        assert found.dtype == dtype
        step = torch.finfo(dtype).eps * exact(f, x).abs()
        assert torch.all((found.double() - exact(f, x)).abs() <= step / 2 + 1e-5)


@pytest.mark.parametrize("rows", [1, 3, ROWS])
@pytest.mark.parametrize("bias", [True, False])
def test_more_rows_in_bfloat16(bias: bool, rows: int) -> None:
    """Sums are in float32, and rounded once, after the activation."""
    maps = [made(300, 50, bias=bias).bfloat16(), made(300, 60, bias=not bias).bfloat16()]
    x, packed = torch.randn(rows, 300).bfloat16(), torch.bfloat16 in ONEDNN_DTYPES
    for f in maps:
        f.pack(ROWS)
        assert (f.packed is not None) == packed
    with torch.inference_mode(), Called() as run:
        alone, active = maps[0](x), activated(maps[0], torch.nn.ReLU(), x)
        joined = together(maps, x)
    assert run.names.count(ONEDNN) == 3 * packed
    wanted = [exact(maps[0], x), exact(maps[0], x).relu(), *(exact(f, x) for f in maps)]
    for found, true in zip((alone, active, *joined), wanted, strict=True):
        assert found.dtype == torch.bfloat16
        step = torch.finfo(torch.bfloat16).eps * true.abs()
        assert torch.all((found.double() - true).abs() <= step / 2 + 1e-5)


def test_a_processor_without_products_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.machine.prepacking.ONEDNN_DTYPES", (torch.float32,))
    f = made().bfloat16()
    f.pack(ROWS)
    assert f.packed is None


def test_more_rows_in_float16_are_not_packed() -> None:
    f = made().half()
    f.pack(ROWS)
    assert f.packed is None


def test_one_row_in_float64_is_not_packed() -> None:
    f = made().double()
    f.pack(1)
    assert f.packed is None


def test_few_rows_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to six, as with AVX-512 these take less time than one, two or three."""
    computed: list[int] = []

    def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        computed.append(len(x))
        return product(x, *rest)

    monkeypatch.setattr("zoo.machine.prepacking.product", counted)
    f = made()
    f.pack(ROWS)
    with torch.inference_mode():
        for n_rows in range(1, 8):
            x = torch.randn(n_rows, 5)
            close(f(x), exact(f, x))
    assert computed == [6, 6, 6, 4, 5, 6, 7]


def test_bags_are_for_one_row() -> None:
    """Others are computed by oneDNN from the weight itself."""
    maps, x = [made(), made()], torch.randn(2, 5)
    for f in maps:
        f.pack(1)
    with torch.inference_mode(), Called() as run:
        for f, found in zip(maps, together(maps, x), strict=True):
            close(found, exact(f, x))
    assert (run.names.count(BAG), run.names.count(ONEDNN)) == (0, 2)


def test_a_torch_without_bags(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ARM."""
    monkeypatch.setattr("zoo.machine.prepacking.HAS_BAGS", False)
    f, x = made(), torch.randn(1, 5)
    f.pack(1)
    with torch.inference_mode(), Called() as run:
        close(f(x), exact(f, x))
    assert (run.names.count(BAG), run.names.count(ONEDNN)) == (0, 1)


def test_what_is_too_small_for_onednn() -> None:
    """Small maps; and few rows, unless the map is packed and no gradients are computed. The result
    is bitwise that of torch."""
    for f, shape, learns, times in (
        (made(256, 255), (2, 64, 256), True, 0),
        (made(256, 255), (256,), False, 0),
        (made(256, 256), (256,), False, 1),
        (made(256, 256), (127, 256), True, 0),
        (made(256, 256), (3, 42, 256), True, 0),
        (made(256, 256), (2, 64, 256), True, 1),
    ):
        x = torch.randn(shape)
        with torch.set_grad_enabled(learns):
            assert called(lambda f=f, x=x: f(x)) == times
            if times == 0:
                assert torch.equal(f(x), F.linear(x, f.weight, f.bias))
    f, x = made(256, 256).requires_grad_(False), torch.randn(3, 256)
    f.pack(ROWS)
    assert called(lambda: f(x)) == 0
    small = made(256, 255)
    small.pack(ROWS)
    assert (f.packed is None, small.packed is None) == (False, True)


def test_a_processor_with_avx2_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients, oneDNN computes fewer than 128 rows, and any number of them for a
    vocabulary; what learns is computed by torch, to the last bit."""
    for name, value in (("AVX2_ONLY", True), ("MANY_ROWS", 128), ("VOCABULARY", 9)):
        monkeypatch.setattr(f"zoo.linear.{name}", value)
    for f, n_rows, learns, times in (
        (made(), 127, False, 1),
        (made(), 128, False, 0),
        (made(n_out=8), 128, False, 0),
        (made(n_out=9), 128, False, 1),
        (made(n_out=9), 128, True, 0),
    ):
        x = torch.randn(n_rows, 5)
        with torch.set_grad_enabled(learns):
            assert called(lambda f=f, x=x: f(x)) == times
            close(f(x), exact(f, x))
            if times == 0:
                assert torch.equal(f(x), F.linear(x, f.weight, f.bias))
    f, x = made(), torch.randn(128, 5)
    f.pack(ROWS)
    with torch.no_grad():
        assert called(lambda: f(x)) == 1


@pytest.fixture
def intel(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_for(monkeypatch, intel=True)
    monkeypatch.setattr("zoo.linear.AS_STORED", 1)


@pytest.mark.usefixtures("intel")
def test_a_processor_of_intels(monkeypatch: pytest.MonkeyPatch) -> None:
    """MKL computes up to three rows, smaller maps, and what learns, to the last bit."""
    monkeypatch.setattr("zoo.linear.AS_STORED", 30)
    for f, n_rows, learns, times in (
        (made(), 3, False, 0),
        (made(), 4, False, 1),
        (made(), 128, False, 1),
        (made(), 128, True, 0),
        (made(n_out=5), 128, False, 0),
    ):
        x = torch.randn(n_rows, 5)
        with torch.set_grad_enabled(learns):
            assert called(lambda f=f, x=x: f(x)) == times
            close(f(x), exact(f, x))
            if times == 0:
                assert torch.equal(f(x), F.linear(x, f.weight, f.bias))
    monkeypatch.setattr("zoo.linear.AVX2_ONLY", True)
    with torch.no_grad():
        assert called(lambda: made()(torch.randn(4, 5))) == 0


@pytest.mark.usefixtures("intel")
@pytest.mark.parametrize("bias", [True, False])
def test_packed_for_intels(bias: bool) -> None:
    """One row has columns; two and three have no copy, and more have one for their number only."""
    activation, layouts = torch.nn.GELU(), []
    for rows in (1, 2, 3, 4, 5):
        maps = [made(33, 50, bias=bias), made(33, 60, bias=not bias)]
        for f in maps:
            f.pack(rows)
        layouts.append(None if maps[0].packed is None else type(maps[0].packed.layout))
        for n_rows in (1, 2, 3, 4, 5):
            x = torch.randn(n_rows, 33, 1).transpose(1, 2)
            with torch.inference_mode(), Called() as run:
                close(maps[0](x), exact(maps[0], x))
                close(activated(maps[0], activation, x), activation(exact(maps[0], x)))
                for f, found in zip(maps, together(maps, x), strict=True):
                    close(found, exact(f, x))
            used = (PACKED_BY_MKL, 3) if rows == n_rows else (ONEDNN, 4)
            wanted = dict([used] if n_rows > 3 else [])
            names = (ONEDNN, PACKED_BY_MKL, BAG)
            assert {name: run.names.count(name) for name in names if name in run.names} == wanted
    assert layouts == [Transposed, None, None, FixedRows, FixedRows]


@pytest.mark.usefixtures("intel")
@pytest.mark.parametrize("bias", [True, False])
def test_the_columns_for_one_row_are_read_for_one_row(bias: bool) -> None:
    """The operators do not tell: the same product is MKL's with the weight as it is stored."""
    f = made(bias=bias)
    f.pack(1)
    assert f.packed is not None
    assert isinstance(f.packed.layout, Transposed)
    f.packed.layout.columns.mul_(2)
    one, two = torch.randn(1, 5), torch.randn(2, 5)
    with torch.inference_mode():
        close(f(one), exact(f, one) + F.linear(one, f.weight))
        close(f(two), exact(f, two))


@pytest.mark.usefixtures("intel")
def test_one_row_in_bfloat16_on_intels() -> None:
    """MKL has no such products."""
    f = made().bfloat16()
    f.pack(1)
    with torch.inference_mode():
        assert called(lambda: f(torch.randn(1, 5).bfloat16())) == (
            HAS_BAGS or torch.bfloat16 in ONEDNN_DTYPES
        )


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("intel", [False, True])
def test_an_input_of_another_dtype_is_refused_by_torch(
    intel: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own words, and never computed with a packed weight."""
    taken_for(monkeypatch, intel=intel)
    f = made()
    f.pack(rows)
    assert f.packed is not None
    for dtype in (torch.bfloat16, torch.float64):
        with torch.inference_mode(), pytest.raises(RuntimeError, match="must have the same dtype"):
            f(torch.randn(rows, 5).to(dtype))


def test_a_torch_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.linear.AVAILABLE", False)
    monkeypatch.setattr(torch.ops, "mkldnn", None)
    f, x = made(), torch.randn(3, 5)
    f.pack(ROWS)
    with torch.inference_mode():
        close(f(x), exact(f, x))
    f(x).sum().backward()


def test_what_torch_computes_itself() -> None:
    x = torch.randn(3, 5)
    with torch.no_grad():
        assert called(lambda: made().double()(x.double())) == 0
        with torch.backends.mkldnn.flags(enabled=False):
            assert called(lambda: made()(x)) == 0
        with torch.autocast("cpu", torch.bfloat16):
            assert made()(x).dtype == torch.bfloat16
    compiled = torch.compile(made(), backend="aot_eager", fullgraph=True)
    close(compiled(x), exact(made(), x))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        made()(torch.randn(3, 4))


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(shape: tuple[int, ...]) -> None:
    f, x = made(), torch.randn(shape, requires_grad=True)
    wanted_f, wanted_x = copy.deepcopy(f).double(), x.detach().double().requires_grad_()
    assert called(lambda: f(x).square().sum().backward()) == 3 * (x.numel() > 0)
    wanted_f(wanted_x).square().sum().backward()
    for found, wanted in ((x, wanted_x), (f.weight, wanted_f.weight), (f.bias, wanted_f.bias)):
        assert found.grad is not None
        assert wanted.grad is not None
        torch.testing.assert_close(found.grad.double(), wanted.grad, rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients_and_of_single_examples() -> None:
    f, x = made(), torch.randn(3, 5, requires_grad=True)
    (first,) = torch.autograd.grad(f(x).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    wide, wide_x = copy.deepcopy(f).double(), x.detach().double().requires_grad_()
    (first,) = torch.autograd.grad(wide(wide_x).pow(3).sum(), wide_x, create_graph=True)
    (wanted,) = torch.autograd.grad(first.square().sum(), wide_x)
    torch.testing.assert_close(second.double(), wanted, rtol=1e-3, atol=1e-3)
    each = torch.func.vmap(torch.func.grad(lambda row: f(row).square().sum()))(x.detach())
    close(each, 2 * exact(f, x.detach()) @ f.weight.double())


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("rows", [None, 1, ROWS])
def test_derivatives_in_forward_mode(rows: int | None, learns: bool) -> None:
    f, x, along = made(), torch.randn(3, 5), torch.randn(3, 5)
    if rows is not None:
        f.pack(rows)
    with torch.set_grad_enabled(learns):
        found, derivative = torch.func.jvp(f, (x,), (along,))
    close(found, exact(f, x))
    close(derivative, along.double() @ f.weight.double().T)
    hessian = torch.func.hessian(lambda row: f(row).pow(2).sum())(x[0])
    close(hessian, 2 * f.weight.double().T @ f.weight.double())


def changed_in_place(f: Linear) -> None:
    with torch.no_grad():
        f.weight.mul_(2)


def loaded(f: Linear) -> None:
    f.load_state_dict({name: value + 1 for name, value in f.state_dict().items()})


def stepped(f: Linear) -> None:
    f(torch.ones(1, 5)).sum().backward()
    torch.optim.SGD(f.parameters(), 0.5).step()


def stepped_by_a_fused_optimizer(f: Linear) -> None:
    """torch's version counter does not count such changes."""
    f(torch.ones(1, 5)).sum().backward()
    torch.optim.SGD(f.parameters(), 0.5, fused=True).step()


def stepped_in_evaluation_mode(f: Linear) -> None:
    """As in fine-tuning without dropout."""
    stepped_by_a_fused_optimizer(f.eval())


def bias_stepped_in_evaluation_mode(f: Linear) -> None:
    f.weight.requires_grad_(False)
    stepped_in_evaluation_mode(f)


def replaced(f: Linear) -> None:
    f.weight = torch.nn.Parameter(torch.ones(6, 5))


def changed_in_its_bias(f: Linear) -> None:
    """As when only biases are trained."""
    with torch.no_grad():
        f.bias.add_(1.0)


def bias_replaced(f: Linear) -> None:
    f.bias = torch.nn.Parameter(torch.ones(6))


def bias_removed(f: Linear) -> None:
    f.bias = None  # type: ignore[assignment]


def bias_parametrized(f: Linear) -> None:
    register_parametrization(f, "bias", torch.nn.Softplus())


def weight_parametrized(f: Linear) -> None:
    register_parametrization(f, "weight", torch.nn.Softplus())


CHANGES = [
    changed_in_place,
    loaded,
    stepped,
    stepped_by_a_fused_optimizer,
    stepped_in_evaluation_mode,
    bias_stepped_in_evaluation_mode,
    replaced,
    changed_in_its_bias,
    bias_replaced,
    bias_removed,
    bias_parametrized,
    weight_parametrized,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("rows", [1, ROWS])
def test_packed_weights_are_never_stale(
    rows: int, change: Callable[[Linear], None], at: int
) -> None:
    maps, x = [made(), made(bias=False)], torch.randn(rows, 5)
    if at == 1:
        maps.reverse()
    for f in maps:
        f.pack(rows)
    with torch.inference_mode():
        assert called(lambda: together(maps, x)) == 1
        for f, found in zip(maps, together(maps, x), strict=True):
            close(found, exact(f, x))
    change(next(f for f in maps if f.bias is not None))
    with torch.inference_mode():
        for f, found in zip(maps, together(maps, x), strict=True):
            close(found, exact(f, x))
            close(f(x), exact(f, x))


def test_another_weight_in_the_same_memory_is_not_taken_for_the_first() -> None:
    """As when a weight is freed, and the allocator gives its memory to the next one."""
    memory, f, x = np.ones((6, 5), np.float32), made(), torch.randn(4, 5)
    f.weight = torch.nn.Parameter(torch.from_numpy(memory))
    f.pack(ROWS)
    memory *= 2
    f.weight = torch.nn.Parameter(torch.from_numpy(memory))
    with torch.inference_mode():
        close(f(x), exact(f, x))


def test_maps_that_are_not_packed_are_not_joined() -> None:
    maps, x = [made(), made()], torch.randn(4, 5)
    with torch.inference_mode():
        assert called(lambda: together(maps, x)) == 2
        maps[0].pack(ROWS)
        close(torch.cat(together(maps, x)), torch.cat([exact(f, x) for f in maps]))


def test_a_packed_weight_is_in_no_copy() -> None:
    f, x = made(), torch.randn(4, 5)
    names = list(f.state_dict())
    f.pack(ROWS)
    assert list(f.state_dict()) == names
    for other in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        changed_in_place(other)
        with torch.inference_mode():
            close(other(x), exact(other, x))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_tensors_of_one_call_are_not_kept(name: str) -> None:
    """The tensors that `functional_call` puts in the place of a map's own."""
    maps = torch.nn.ModuleList([made(), made()])
    x = torch.randn(4, 5)
    for f in maps:
        f.pack(ROWS)
    both = torch.nn.Module()
    both.maps = maps
    both.forward = lambda x: together(list(maps), x)  # type: ignore[method-assign]
    for value in (torch.zeros_like(maps[1].get_parameter(name)), maps[1].get_parameter(name) + 1):
        tensors = {f"maps.1.{name}": value.detach()}
        with torch.no_grad():
            _, found = torch.func.functional_call(both, tensors, (x,))
        weight, bias = (tensors.get(f"maps.1.{n}", maps[1].get_parameter(n)) for n in PARAMETERS)
        close(found, F.linear(x.double(), weight.double(), bias.double()))


PARAMETERS = ("weight", "bias")


@pytest.mark.parametrize("instead", ["hook", "module", "forward"])
def test_what_stands_in_for_a_map_is_called(instead: str) -> None:
    """A hook, a module such as an adapter in the place of a packed map, or a replaced `forward`, as
    by accelerate."""
    maps: list[torch.nn.Module] = [made(), made()]
    x = torch.randn(4, 5)
    for f in maps:
        f.pack(ROWS)
    with torch.inference_mode():
        together(maps, x)
        if instead == "hook":
            maps[1].register_forward_hook(lambda module, inputs, output: output * 0)
        elif instead == "forward":
            maps[1].forward = lambda x: torch.zeros(4, 6)  # type: ignore[method-assign]
        else:
            maps[1] = torch.nn.Linear(5, 6)
            torch.nn.init.zeros_(maps[1].weight)
            torch.nn.init.zeros_(maps[1].bias)
        one, other = together(maps, x)
    close(one, exact(maps[0], x))
    assert torch.equal(other, torch.zeros(4, 6))


@pytest.mark.parametrize(
    "register", [register_module_forward_hook, register_module_forward_pre_hook]
)
def test_hooks_of_all_modules_see_every_module(register: Callable[..., Any]) -> None:
    """As those of torch's FlopCounterMode, which counts by module."""
    maps, activation, dropout = [made(), made()], torch.nn.GELU(), Dropout(0.5).eval()
    for f in maps:
        f.pack(ROWS)
    seen: list[torch.nn.Module] = []
    handle = register(lambda module, *_: seen.append(module))
    try:
        with torch.inference_mode():
            x = torch.randn(4, 5)
            together(maps, x)
            activated(maps[0], activation, x)
            dropout(x)
    finally:
        handle.remove()
    assert seen == [*maps, maps[0], activation, dropout]


def test_a_map_made_in_inference_mode() -> None:
    with torch.inference_mode():
        f, x = made(), torch.randn(4, 5)
        f.pack(ROWS)
        close(f(x), exact(f, x))
        f.weight.mul_(2)  # which the version counter does not count
        close(f(x), exact(f, x))


ACTIVATIONS = {
    "relu": torch.nn.ReLU(),
    "silu": torch.nn.SiLU(),
    "sigmoid": torch.nn.Sigmoid(),
    "tanh": torch.nn.Tanh(),
    "gelu": torch.nn.GELU(),
    "gelu_tanh": torch.nn.GELU(approximate="tanh"),
}


@pytest.mark.parametrize("rows", [None, 1, ROWS])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_computed_with_the_product(
    name: str, shape: tuple[int, ...], rows: int | None
) -> None:
    f, x = made(), torch.randn(shape) * 3
    if rows is not None:
        f.pack(rows)
    with torch.inference_mode(), Called() as run:
        found = activated(f, ACTIVATIONS[name], x)
    close(found, ACTIVATIONS[name](exact(f, x)))
    if x.numel() > 0 and BAG not in run.names:
        assert run.names.count(ONEDNN) == 1
        assert not {"aten::relu", "aten::silu", "aten::sigmoid", "aten::tanh", "aten::gelu"} & {
            *run.names
        }


@pytest.mark.parametrize("rows", [None, 1, ROWS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_replaces_the_product(
    name: str, dtype: torch.dtype, rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On processors with AVX2 only; bitwise the same as its module, whose input is unchanged."""
    monkeypatch.setattr("zoo.linear.AVX2_ONLY", True)
    f, activation = made().to(dtype), ACTIVATIONS[name]
    x = torch.randn(rows or 3, 5).to(dtype) * 3
    before = x.clone()
    if rows is not None:
        f.pack(rows)
    with torch.inference_mode(), Called() as run:
        found = activated(f, activation, x)
        wanted = activation(f(x))
    assert f"aten::{name.removesuffix('_tanh')}_" in run.names
    assert torch.equal(found, wanted)
    assert torch.equal(x, before)


class Leaky(torch.nn.GELU):
    """A third-party activation."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1.0


@pytest.mark.parametrize("rows", [None, 1, ROWS])
@pytest.mark.parametrize(
    "case", ["own", "unknown", "double", "gradients", "hooked map", "hooked activation", "adapter"]
)
def test_another_activation_or_map_is_called(case: str, rows: int | None) -> None:
    f: torch.nn.Module = made()
    activation: torch.nn.Module = torch.nn.GELU()
    x = torch.randn(rows or 4, 5)
    wanted = activation(exact(made(), x))
    if rows is not None:
        f.pack(rows)  # type: ignore[operator]
    if case == "own":
        activation, wanted = Leaky(), wanted + 1.0
    elif case == "unknown":
        activation = torch.nn.Softplus()
        wanted = activation(exact(made(), x))
    elif case == "double":
        f, x = f.double(), x.double()
    elif case == "hooked map":
        f.register_forward_hook(lambda module, inputs, output: output * 0)
        wanted = torch.zeros(len(x), 6)
    elif case == "hooked activation":
        activation.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0,))
        wanted = torch.zeros(len(x), 6)
    elif case == "adapter":
        f = torch.nn.Sequential(f, torch.nn.Linear(6, 6))
        torch.nn.init.zeros_(f[1].weight)
        torch.nn.init.zeros_(f[1].bias)
        wanted = torch.zeros(len(x), 6)
    with torch.set_grad_enabled(case == "gradients"):
        found = activated(f, activation, x)
    close(found.detach(), wanted)
    assert found.requires_grad == (case == "gradients")
