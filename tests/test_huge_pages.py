"""The memory that weights lie in."""

from __future__ import annotations

import errno
import mmap
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from processors import taken_for

import zoo
from zoo.linear import Linear
from zoo.machine.memory import CHUNK, MADV_COLLAPSE, PAGE, SMALL, Arena, Scratch, collapse
from zoo.machine.prepacking import AVAILABLE, FixedRows, ManyRows

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def is_on() -> bool:
    """Whether this machine has huge pages for who asks for them."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[never]" not in setting.read_text()


def is_moved() -> bool:
    """Whether memory in use is moved into huge pages, as by Linux from 6.1 on."""
    memory = mmap.mmap(-1, 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(2 * PAGE))
    try:
        memory.madvise(MADV_COLLAPSE)
    except OSError as error:
        return error.errno != errno.EINVAL
    return True


HUGE = pytest.mark.skipif(not is_on(), reason="this machine gives no huge pages")
MOVED = pytest.mark.skipif(not (is_on() and is_moved()), reason="nothing is moved into huge pages")
SIZES = [1, SMALL // 4, SMALL // 4 + 1, PAGE // 4, 64, CHUNK // 12, CHUNK // 8 + 16, PAGE]
SPEC = """
format = 1
name = "two-pages"
builder = "decoder"
vocab = 1024
n_layers = 2
d_model = 512
n_heads = 8
d_ff = 2048
"""


def numbered(arena: Arena) -> list[torch.Tensor]:
    """Tensors of many sizes, small and large in turn, each filled with its number."""
    return [
        arena.empty((size,), torch.float32).fill_(number) for number, size in enumerate(3 * SIZES)
    ]


def test_tensors_of_an_arena_do_not_overlap() -> None:
    for number, tensor in enumerate(numbered(Arena())):
        assert tensor.data_ptr() % 64 == 0
        assert (tensor == number).all()


def test_threads_share_an_arena() -> None:
    arena = Arena()

    def of_one(number: int) -> list[torch.Tensor]:
        return [arena.empty((SMALL,), torch.int64).fill_(number) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for number, tensors in enumerate(pool.map(of_one, range(8))):
            assert all((tensor == number).all() for tensor in tensors)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_tensor_is_of_any_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for memory in (Arena(), Scratch()):
        tensor = memory.empty(shape, dtype)
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)


@pytest.mark.parametrize("memory", [Arena(), Scratch()], ids=["arena", "scratch"])
@pytest.mark.parametrize("n", [2**60, 2**62])
def test_more_than_there_is_is_an_error(memory: Arena | Scratch, n: int) -> None:
    with pytest.raises((MemoryError, RuntimeError)):
        memory.empty((n,), torch.float32)


def test_scratch_memory_is_used_again_by_its_thread_alone() -> None:
    scratch = Scratch()
    first = scratch.empty((100,), torch.float32)
    assert scratch.empty((3, 7), torch.int64).data_ptr() == first.data_ptr()
    with ThreadPoolExecutor(1) as pool:
        of_another = pool.submit(scratch.empty, (100,), torch.float32).result()
    assert of_another.data_ptr() != first.data_ptr()
    assert scratch.empty((PAGE,), torch.float32).fill_(1).sum() == PAGE


def mappings() -> Iterator[tuple[range, dict[str, str]]]:
    """The addresses of the memory of this process, and what Linux says of them."""
    found: dict[str, str] = {}
    where = range(0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, value = line.partition(":")
        if "-" in key:
            yield where, found
            start, end = key.split()[0].split("-")
            where, found = range(int(start, 16), int(end, 16)), {}
        else:
            found[key] = value.strip()
    yield where, found


def told_of(tensor: torch.Tensor) -> dict[str, str]:
    """What Linux says of the memory of a tensor."""
    return next(found for where, found in mappings() if tensor.data_ptr() in where)


@LINUX
def test_an_arena_gives_its_memory_back() -> None:
    arena = Arena()
    tensors = [arena.empty((PAGE,), torch.float32).fill_(1) for _ in range(30)]
    addresses = {tensor.data_ptr() for tensor in tensors}

    def there() -> int:
        return sum(address in where for where, _ in mappings() for address in addresses)

    assert there() == 30
    del tensors
    assert there() <= CHUNK // (4 * PAGE)  # of the last chunk


@HUGE
@pytest.mark.parametrize("made", ["built", "loaded", "cast", "initial"])
def test_huge_pages_are_asked_for(made: str, tmp_path: Path) -> None:
    model = zoo.build(SPEC)
    zoo.save(model, tmp_path / "model.safetensors")
    if made in {"loaded", "cast"}:
        dtype = torch.bfloat16 if made == "cast" else None
        model = zoo.load(tmp_path / "model.safetensors", dtype=dtype)
    elif made == "initial":
        model = zoo.load(tmp_path / "model.safetensors", only="decoder.layers.0.*")
    for parameter in (one for one in model.parameters() if one.nbytes >= SMALL):
        assert "hg" in told_of(parameter)["VmFlags"].split()


def shortages() -> int:
    """How often Linux had no huge page, for any process that asked for one."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts["thp_fault_fallback"]) + int(counts["thp_collapse_alloc_failed"])


@contextmanager
def unless_none_is_left() -> Iterator[None]:
    """Skip a test that fails while the memory of the machine is too full for huge pages."""
    before = shortages()
    try:
        yield
    except AssertionError:
        if shortages() > before:
            pytest.skip("there were not enough huge pages")
        raise


def collapsed(memory: torch.Tensor) -> int:
    """The bytes in huge pages of the mapping of a tensor."""
    return int(told_of(memory)["AnonHugePages"].removesuffix(" kB")) * 1024


@MOVED
def test_memory_in_use_is_moved_into_huge_pages() -> None:
    n_bytes = 8 * PAGE
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    values = torch.frombuffer(memory, dtype=torch.int64)
    torch.arange(len(values), out=values)
    with unless_none_is_left():
        for _ in range(10):  # Linux lets out a page that is just in use elsewhere
            collapse(values.data_ptr(), n_bytes)
            if collapsed(values) >= n_bytes - 2 * PAGE:
                break
        assert collapsed(values) >= n_bytes - 2 * PAGE
    assert torch.equal(values, torch.arange(len(values)))


def test_memory_of_others_is_left_alone() -> None:
    """Nothing is mapped at the first addresses."""
    collapse(PAGE, 3 * PAGE)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is asked to be moved, as addresses and bytes. How many pages are huge in the end hangs
    on what lies beside the copies, and on all else that the machine does."""
    asked: list[tuple[int, int]] = []
    for user in ("zoo.machine.prepacking", "zoo.int8"):
        monkeypatch.setattr(f"{user}.collapse", lambda *memory: asked.append(memory))
    return asked


@pytest.mark.skipif(not AVAILABLE, reason="this torch has no oneDNN")
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("intel", [False, True])
def test_arranged_copies_are_moved_into_huge_pages(
    rows: int,
    intel: bool,
    moved: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processors of Intel's have layouts of their own."""
    taken_for(monkeypatch, intel=intel)
    model = zoo.build(SPEC).eval()
    zoo.arrange_weights(model, rows=rows)
    packed = [(one, one.packed) for one in model.modules() if isinstance(one, Linear)]
    assert len(moved) == len(packed) == 2 * 6 + 1  # of the head too
    for (one, copy), (address, n_bytes) in zip(packed, moved, strict=True):
        assert copy is not None
        if isinstance(copy.layout, FixedRows):  # MKL begins later, and only whole pages are moved
            begin = torch.ops.mkldnn.data_ptr(copy.layout.weight)
            assert address % PAGE == 0
            assert 0 <= address - begin < PAGE
            assert n_bytes == one.weight.nbytes // PAGE * PAGE
        else:
            assert n_bytes >= one.weight.nbytes
            if isinstance(copy.layout, ManyRows):  # only oneDNN can read it
                assert address == torch.ops.mkldnn.data_ptr(copy.layout.weight)
            else:
                assert address == copy.layout.columns.data_ptr()


def test_codes_of_8_bits_are_moved_into_huge_pages(moved: list[tuple[int, int]]) -> None:
    model = zoo.build(SPEC).eval()
    zoo.quantize_weights(model)
    codes = [buffer for name, buffer in model.named_buffers() if name.endswith("codes")]
    assert len(codes) == 2 * 6 + 2  # of the head and of the table of tokens too
    assert sorted(moved) == sorted((buffer.data_ptr(), buffer.nbytes) for buffer in codes)


def test_weights_are_copied_pickled_shared_and_cast() -> None:
    model = zoo.build(SPEC)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    same = [deepcopy(model), pickle.loads(pickle.dumps(model)), deepcopy(model).double().float()]
    same.append(model.share_memory())
    for one in same:
        for name, value in one.state_dict().items():
            assert torch.equal(value, expected[name])
