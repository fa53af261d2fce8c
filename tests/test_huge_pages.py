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
from trials import python

import zoo
from zoo.machine.memory import CHUNK, MADV_COLLAPSE, PAGE, SMALL, Arena, Scratch, collapse

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


@LINUX
def test_an_arena_gives_its_memory_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    arena = Arena()
    tensors = [arena.empty((PAGE,), torch.float32).fill_(1) for _ in range(30)]
    before = resident()
    del tensors
    assert before - resident() > 20 * 4 * PAGE  # but for the last chunk


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
        collapse(values.data_ptr(), n_bytes)
        assert collapsed(values) >= n_bytes - 2 * PAGE
    assert torch.equal(values, torch.arange(len(values)))


def test_memory_of_others_is_left_alone() -> None:
    """Nothing is mapped at the first addresses."""
    collapse(PAGE, 3 * PAGE)


COPIES = """
import sys, zoo

def in_huge_pages():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    line = next(line for line in lines if line.startswith("AnonHugePages:"))
    return int(line.split()[1]) * 1024

model = zoo.build(sys.argv[1]).eval()
before = in_huge_pages()
if sys.argv[2] == "8 bits":
    zoo.quantize_weights(model)
    before = 0
    n_bytes = sum(codes.nbytes for name, codes in model.named_buffers() if "codes" in name)
else:
    zoo.arrange_weights(model, rows=int(sys.argv[2]))
    n_bytes = sum(p.nbytes for p in model.parameters() if p.dim() == 2)
print((in_huge_pages() - before) / n_bytes)
"""


@MOVED
@pytest.mark.parametrize("how", ["1", "8", "8 bits"])
def test_copies_of_weights_are_in_huge_pages(how: str) -> None:
    """A process of its own is asked as a whole: memory of oneDNN's layouts has no address in
    Python, and what other tests have freed may be in huge pages already. Some pages of the heap
    are counted with them; a second copy, or the floats that 8 bits were made of, would be more."""
    spec = SPEC.replace("512", "1024").replace("2048", "4096")
    with unless_none_is_left():
        assert 0.6 < float(python(COPIES, spec, how)) < 1.9


def test_weights_are_copied_pickled_shared_and_cast() -> None:
    model = zoo.build(SPEC)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    same = [deepcopy(model), pickle.loads(pickle.dumps(model)), deepcopy(model).double().float()]
    same.append(model.share_memory())
    for one in same:
        for name, value in one.state_dict().items():
            assert torch.equal(value, expected[name])
