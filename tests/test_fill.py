"""The `zoo.init.v1` stream against a plain Python implementation, known answers and statistics."""

from __future__ import annotations

import math
import os
import runpy
import struct
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from trials import python

from zoo.distribution import Constant, Cycle, Distribution, Normal, TruncatedNormal, Uniform
from zoo.fill import fill

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "zoo" / "init_v1_normal.npy"
MASK64 = 2**64 - 1
RANDOM = [
    Uniform(0.1),
    Normal(0.02),
    TruncatedNormal(0.02),
    TruncatedNormal(3.0, cut=0.5),
    TruncatedNormal(1.0, cut=4.3),
]


def f32(value: float) -> float:
    """Round to float32: a product or sum of two float32 in float64 is then rounded only once."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def philox4x64(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10, section 4.3 of Salmon et al. (SC 2011), in integers of any size."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (
            right >> 64 ^ c1 ^ k0,
            right & MASK64,
            left >> 64 ^ c3 ^ k1,
            left & MASK64,
        )
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK64, (k1 + 0xBB67AE8584CAA73B) & MASK64
    return [c0, c1, c2, c3]


def plain_words(seed: int, name: str) -> Iterator[int]:
    """Yield the stream's words as signed 32-bit integers."""
    digest = sha256(b"zoo.init.v1\0" + seed.to_bytes(8, "little") + name.encode()).digest()
    key = list(struct.unpack("<2Q", digest[:16]))
    counter = 1
    while True:
        for pair in philox4x64([counter, 0, 0, 0], key):
            yield from struct.unpack("<2i", struct.pack("<Q", pair))
        counter += 1


@cache
def plain_table() -> list[float]:
    return np.load(TABLE, allow_pickle=False).tolist()


def plain_quantile(word: int) -> float:
    table, cell = plain_table(), (word >> 16) + 32768
    slope = f32(table[cell + 1] - table[cell]) * 2.0**-16
    return f32(f32((word & 0xFFFF) * slope) + table[cell])


@cache
def plain_half_range(cut: float) -> int:
    def outside(k: int) -> bool:
        return max(-plain_quantile(-k), plain_quantile(k - 1)) > cut

    return bisect_left(range(1, 2**31 + 1), True, key=outside)


def plain_value(word: int, distribution: Distribution) -> float:
    match distribution:
        case Constant(value):
            return f32(value)
        case Uniform(bound):
            return f32((word >> 8) * f32(bound * 2.0**-23))
        case Normal(std):
            return f32(plain_quantile(word) * f32(std))
        case TruncatedNormal(std, cut):
            return f32(plain_quantile(word * plain_half_range(cut) >> 31) * f32(std))


def plain_fill(size: int, distribution: Distribution, *, seed: int, name: str) -> bytes:
    words = plain_words(seed, name)
    values = [plain_value(next(words), distribution) for _ in range(size)]
    return struct.pack(f"<{size}f", *values)


def filled(
    shape: int | tuple[int, ...],
    distribution: Distribution,
    *,
    seed: int = 7,
    name: str = "layer.weight",
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    tensor = torch.ones(shape, dtype=dtype)
    fill({name: (tensor, distribution)}, seed=seed)
    return tensor


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# Random123's kat_vectors, "philox4x64 10": counter, key, block.
KNOWN_ANSWERS = [
    (
        [0] * 4,
        [0] * 2,
        [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B],
    ),
    (
        [MASK64] * 4,
        [MASK64] * 2,
        [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0],
    ),
    (
        [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
        [0x452821E638D01377, 0xBE5466CF34E90C6C],
        [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6],
    ),
]


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN_ANSWERS)
def test_both_philoxes_give_the_known_answers(
    counter: list[int], key: list[int], block: list[int]
) -> None:
    assert philox4x64(counter, key) == block
    # numpy increments the counter before it makes a block, so the stream's first counter is 1.
    before = (sum(part << 64 * i for i, part in enumerate(counter)) - 1) % 2**256
    generator = np.random.Philox(key=key[0] | key[1] << 64, counter=before)
    assert generator.random_raw(4).tolist() == block


@pytest.mark.parametrize("distribution", [Constant(0.1), Normal(1.0), *RANDOM], ids=str)
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 1001])
@pytest.mark.parametrize(("seed", "name"), [(0, "w"), (2**64 - 1, "décodeur.0.weight")])
def test_bytes_are_those_of_plain_python(
    size: int, distribution: Distribution, seed: int, name: str
) -> None:
    expected = plain_fill(size, distribution, seed=seed, name=name)
    assert raw(filled(size, distribution, seed=seed, name=name)) == expected


@pytest.mark.parametrize("distribution", RANDOM, ids=str)
def test_bytes_far_into_a_stream_are_those_of_plain_python(distribution: Distribution) -> None:
    start = (1 << 20) + (1 << 16) - 8  # across the ends of a step and of a task
    tensor = filled(start + 17, distribution, seed=3, name="w")
    key = sha256(b"zoo.init.v1\0" + (3).to_bytes(8, "little") + b"w").digest()[:16]
    pairs = [
        pair
        for block in range(3)
        for pair in philox4x64([1 + start // 8 + block, 0, 0, 0], list(struct.unpack("<2Q", key)))
    ]
    words = struct.unpack("<24i", struct.pack("<12Q", *pairs))
    assert tensor[start:].tolist() == [plain_value(word, distribution) for word in words[:17]]


@pytest.mark.parametrize("distribution", [Constant(0.1), *RANDOM], ids=str)
def test_casts_come_last(distribution: Distribution) -> None:
    size = (1 << 17) + 3
    single = filled(size, distribution)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        assert raw(filled(size, distribution, dtype=dtype)) == raw(single.to(dtype))

    values = single[:1000].tolist()
    assert filled(1000, distribution, dtype=torch.float64).tolist() == values
    halves = struct.pack("<1000e", *values)  # rounds to nearest even
    assert raw(filled(1000, distribution, dtype=torch.float16)) == halves
    bits = struct.unpack("<1000I", struct.pack("<1000f", *values))
    brains = struct.pack("<1000H", *(b + 0x7FFF + (b >> 16 & 1) >> 16 for b in bits))
    assert raw(filled(1000, distribution, dtype=torch.bfloat16)) == brains


distributions = st.sampled_from([Constant(1.5), *RANDOM])
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
requests = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name.isprintable()),
    st.tuples(st.integers(0, 300), distributions, dtypes),
    max_size=6,
)


@given(
    requests=requests,
    seed=st.integers(0, 2**64 - 1),
    threads=st.sampled_from([1, 2, 5]),
    step=st.sampled_from([8, 24, 64]),
    data=st.data(),
)
def test_a_tensor_depends_on_nothing_but_itself(
    requests: dict[str, tuple[int, Distribution, torch.dtype]],
    seed: int,
    threads: int,
    step: int,
    data: st.DataObject,
) -> None:
    alone = {
        name: raw(filled(size, distribution, seed=seed, name=name, dtype=dtype))
        for name, (size, distribution, dtype) in requests.items()
    }
    tensors = {
        name: (torch.empty(requests[name][0], dtype=requests[name][2]), requests[name][1])
        for name in data.draw(st.permutations(list(requests)))
    }
    torch.set_num_threads(threads)
    with patch.multiple("zoo.fill", _STEP=step, _TASK=step * 3, _GRAIN=16):
        fill(tensors, seed=seed)
    assert {name: raw(tensor) for name, (tensor, _) in tensors.items()} == alone


@pytest.mark.parametrize("distribution", RANDOM, ids=str)
def test_threads_change_nothing(distribution: Distribution) -> None:
    size = (5 << 20) + 13
    torch.set_num_threads(1)
    one = filled(size, distribution)
    torch.set_num_threads(2)
    assert raw(filled(size, distribution)) == raw(one)


def test_shape_changes_nothing_and_name_and_seed_do() -> None:
    flat = filled(120, Normal(1.0))
    assert raw(filled((2, 3, 4, 5), Normal(1.0))) == raw(flat)
    assert filled((), Normal(1.0)).item() == flat[0].item()
    for other in (filled(120, Normal(1.0), seed=8), filled(120, Normal(1.0), name="layer.bias")):
        assert not (other == flat).any()


# A fill of 100,003 elements, seed 2017, name "encoder.layers.0.ffn.up_proj.weight". These are the
# format: if one changes, so does every model that was ever built.
GOLDEN: list[tuple[Distribution, torch.dtype, str]] = [
    (
        Uniform(0.05),
        torch.float32,
        "fb13940468a51e4ddffaa5032e9b9f3545ae10dcacd344d712cc38c70777ed12",
    ),
    (
        Normal(0.02),
        torch.float32,
        "3846a02388bad0dff425f124e96bcfd2afd7dae7a1fff6eb57b86a55e11058d8",
    ),
    (
        TruncatedNormal(0.02),
        torch.float32,
        "b297c074832dd194b06d29d0acf820e85c7a376c363f269b64783277369d617b",
    ),
    (
        TruncatedNormal(1.0, cut=3.0),
        torch.float64,
        "bab2e95547e262f5d40b9ebe880d543caafd6b4b6b5c0f4a2a27b98380943d87",
    ),
    (
        Normal(0.02),
        torch.bfloat16,
        "4b43601f447a46f6f6435866a9250a59fa1c4e1dbff878fe3538d489b8ab59dd",
    ),
    (
        Uniform(0.05),
        torch.float16,
        "fed7270247a4e4c35d4f0c6177a82079d0a816f8890a6d7cec31d35acdc7ac0d",
    ),
]
GOLDEN_NAME = "encoder.layers.0.ffn.up_proj.weight"


@pytest.mark.parametrize(("distribution", "dtype", "digest"), GOLDEN, ids=str)
def test_golden_digests(distribution: Distribution, dtype: torch.dtype, digest: str) -> None:
    tensor = filled(100_003, distribution, seed=2017, name=GOLDEN_NAME, dtype=dtype)
    assert sha256(raw(tensor)).hexdigest() == digest


def test_golden_digests_in_another_environment() -> None:
    environment = {
        "ATEN_CPU_CAPABILITY": "default",
        "PYTHONHASHSEED": "1",
        "OMP_NUM_THREADS": "1" if torch.get_num_threads() > 1 else "2",
    }
    lines = [
        "from zoo.distribution import Normal, TruncatedNormal, Uniform",
        "import hashlib, torch, zoo.fill",
        f"for distribution, dtype in {[(d, t) for d, t, _ in GOLDEN]}:",
        "    tensor = torch.empty(100_003, dtype=dtype)",
        f"    zoo.fill.fill({{{GOLDEN_NAME!r}: (tensor, distribution)}}, seed=2017)",
        "    print(hashlib.sha256(tensor.view(torch.uint8).numpy()).hexdigest())",
    ]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=ROOT,
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout.split() == [digest for _, _, digest in GOLDEN]


@pytest.mark.parametrize(
    ("distribution", "theory"),
    [
        (Uniform(0.1), stats.uniform(-0.1, 0.2)),
        (Normal(0.02), stats.norm(0, 0.02)),
        (TruncatedNormal(0.02), stats.truncnorm(-2, 2, 0, 0.02)),
        (TruncatedNormal(3.0, cut=0.5), stats.truncnorm(-0.5, 0.5, 0, 3.0)),
    ],
    ids=["uniform", "normal", "truncated", "truncated-narrow"],
)
def test_distributions(distribution: Distribution, theory: stats.rv_continuous) -> None:
    size = 1_000_000
    sample = filled(size, distribution).double().numpy()
    assert stats.kstest(sample, theory.cdf).statistic < 1.63 / math.sqrt(size)  # p > 0.01
    assert abs(sample.mean()) < 4 * theory.std() / math.sqrt(size)
    assert sample.std() == pytest.approx(theory.std(), rel=0.003)
    # Neither neighbours nor streams are correlated.
    other = filled(size, distribution, name="layer.bias").double().numpy()
    limit = 4 / math.sqrt(size)
    for lag in (1, 2, 4, 8):
        assert abs(np.corrcoef(sample[lag:], sample[:-lag])[0, 1]) < limit
    assert abs(np.corrcoef(sample, other)[0, 1]) < limit


def test_ranges() -> None:
    size = 1 << 22
    uniform = filled(size, Uniform(0.1))
    bound = f32(0.1)
    assert -bound <= uniform.min().item() < -bound * (1 - 1e-5)
    assert bound * (1 - 1e-5) < uniform.max().item() < bound
    cut = filled(size, TruncatedNormal(1.0, cut=2.0))
    assert 1.9999 < cut.abs().max().item() <= 2.0


@pytest.mark.parametrize("cut", [0.01, 0.5, 2.0, 3.0, 4.3])
def test_the_cut_range_is_the_largest_that_fits(cut: float) -> None:
    k = plain_half_range(cut)
    assert max(-plain_quantile(-k), plain_quantile(k - 1)) <= cut
    assert max(-plain_quantile(-k - 1), plain_quantile(k)) > cut
    assert k / 2**31 == pytest.approx(2 * stats.norm.cdf(cut) - 1, abs=2e-6)


def test_a_cut_past_the_table_is_a_plain_normal() -> None:
    normal = raw(filled(5000, Normal(0.3)))
    for cut in (4.5, 40.0, math.inf):
        assert raw(filled(5000, TruncatedNormal(0.3, cut=cut))) == normal
    assert not filled(5000, TruncatedNormal(0.3, cut=1e-12)).any()


def test_table_is_the_normal_quantile() -> None:
    table = np.load(TABLE, allow_pickle=False)
    assert table.shape == (65537,)
    assert table.dtype == np.float32
    exact = stats.norm.ppf(np.arange(1, 65536) / 65536)
    np.testing.assert_array_max_ulp(table[1:-1], exact.astype(np.float32), maxulp=1)
    assert (table == -table[::-1]).all()
    assert (np.diff(table) > 0).all()
    assert table[-1] == np.float32(exact[-1] + 2 * (exact[-1] - exact[-2]))
    digest = "1beb347fdda991bec8782e40ec17395ec939ec68a99f3514ec47439c489db3b4"
    assert sha256(table.tobytes()).hexdigest() == digest


def test_quantile_never_decreases() -> None:
    # Within a cell each operation is monotonic; only the boundaries remain to be checked.
    last, first = np.arange(1, 65536) * 65536 - 1 - 2**31, np.arange(1, 65536) * 65536 - 2**31
    for before, after in zip(last.tolist(), first.tolist(), strict=True):
        assert plain_quantile(before) <= plain_quantile(after)


def test_table_is_what_its_program_makes(tmp_path: Path) -> None:
    made = tmp_path / "table.npy"
    script = ROOT / "tools" / "make_normal_table.py"
    with patch.object(sys, "argv", [str(script), str(made)]):
        runpy.run_path(str(script), run_name="__main__")
    assert made.read_bytes() == TABLE.read_bytes()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32])
def test_cycles(dtype: torch.dtype) -> None:
    """Also where the tensor is filled piece by piece, and of a part of one."""
    found = filled((3, 5), Cycle(4), dtype=dtype)
    assert found.flatten().tolist() == [i % 4 for i in range(15)]
    n = 2_100_000
    assert torch.equal(filled(n, Cycle(7), dtype=dtype), (torch.arange(n) % 7).to(dtype))
    part = torch.ones(5, dtype=dtype)
    fill({"layer.weight": (part, Cycle(4))}, seed=7, runs={"layer.weight": [(3, 2), (9, 3)]})
    assert part.tolist() == [3, 0, 1, 2, 3]


def test_a_cycle_that_a_tensor_cannot_hold_is_refused() -> None:
    filled(1, Cycle(128), dtype=torch.int8)
    with pytest.raises(ValueError, match="not a value of that dtype"):
        filled(1, Cycle(129), dtype=torch.int8)
    for length in (0, 2**24 + 1):
        with pytest.raises(ValueError, match="length must be from 1"):
            Cycle(length)


def test_constants() -> None:
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        assert filled(70_000, Constant(42.0), dtype=dtype).unique().tolist() == [42]
    assert filled(1, Constant(2**24 + 1), dtype=torch.int32).item() == 2**24 + 1  # no float32
    assert filled(70_000, Constant(0.1)).unique().tolist() == [f32(0.1)]
    assert filled(3, Constant(0.1), dtype=torch.float64).unique().tolist() == [f32(0.1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_and_inference_tensors_are_filled(dtype: torch.dtype) -> None:
    expected = filled(10, Normal(1.0), dtype=dtype)
    parameter = torch.nn.Parameter(torch.zeros(10, dtype=dtype))
    fill({"layer.weight": (parameter, Normal(1.0))}, seed=7)
    assert parameter.requires_grad
    assert parameter.is_leaf
    assert raw(parameter) == raw(expected)
    with torch.inference_mode():
        frozen = torch.zeros(10, dtype=dtype)
    fill({"layer.weight": (frozen, Normal(1.0))}, seed=7)
    assert raw(frozen) == raw(expected)
    with torch.device("meta"):
        tensor = torch.zeros(10, dtype=dtype, device="cpu")
        fill({"layer.weight": (tensor, Normal(1.0))}, seed=7)
    assert raw(tensor) == raw(expected)


def test_part_of_a_storage_is_filled_and_no_more() -> None:
    whole = torch.full((100,), 9.0)
    fill({"layer.weight": (whole[10:31], Uniform(1.0))}, seed=7)
    assert raw(whole[10:31]) == raw(filled(21, Uniform(1.0)))
    assert (whole[:10] == 9).all()
    assert (whole[31:] == 9).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_on_bytes_counts_every_byte(threads: int) -> None:
    torch.set_num_threads(threads)
    tensors: dict[str, tuple[torch.Tensor, Distribution]] = {
        "a": (torch.empty((3 << 20) + 1), Normal(1.0)),
        "b": (torch.empty(1001, dtype=torch.bfloat16), Uniform(1.0)),
        "c": (torch.empty(5, dtype=torch.int64), Constant(0.0)),
        "d": (torch.empty(0), Normal(1.0)),
    }
    sizes: list[int] = []
    fill(tensors, seed=0, on_bytes=sizes.append)
    assert sum(sizes) == 4 * ((3 << 20) + 1) + 2 * 1001 + 8 * 5
    assert sizes[:3] == [4 << 20] * 3
    assert len(sizes) == 4  # the remaining tensors are small enough for one batch


def test_an_error_of_on_bytes_is_passed_on() -> None:
    def stop(size: int) -> None:
        raise KeyError(size)

    with pytest.raises(KeyError):
        fill({"a": (torch.empty(10), Normal(1.0))}, seed=0, on_bytes=stop)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, "0", None, np.int64(3)])
def test_seeds_that_are_no_u64_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed must be an integer from 0"):
        fill({}, seed=seed)


@pytest.mark.parametrize(
    ("tensor", "distribution", "message"),
    [
        (torch.empty(4, 4).T[:2], Normal(1.0), "not contiguous"),
        (torch.empty(4, device="meta"), Normal(1.0), "not a dense CPU tensor"),
        (torch.empty(4, dtype=torch.complex64), Normal(1.0), "dtype not supported"),
        (torch.empty(4, dtype=torch.bool), Constant(1.0), "dtype not supported"),
        (torch.empty(4, dtype=torch.int64), Normal(1.0), "integers take a Constant or a Cycle"),
        (torch.empty(4, dtype=torch.int64), Constant(0.5), "not a value of that dtype"),
        (torch.empty(4, dtype=torch.uint8), Constant(256.0), "not a value of that dtype"),
        (torch.empty(4, dtype=torch.uint8), Constant(-1.0), "not a value of that dtype"),
    ],
)
def test_tensors_that_cannot_be_filled_are_refused_before_any_is_written(
    tensor: torch.Tensor, distribution: Distribution, message: str
) -> None:
    first = torch.full((4,), 9.0)
    with pytest.raises(ValueError, match=rf"'bad\.name'.*{message}"):
        fill({"first": (first, Normal(1.0)), "bad.name": (tensor, distribution)}, seed=0)
    assert (first == 9).all()


@pytest.mark.parametrize("value", [-128, 127])
def test_integers_take_the_ends_of_their_range(value: int) -> None:
    assert filled(3, Constant(value), dtype=torch.int8).tolist() == [value] * 3


def test_tensors_that_share_one_byte_are_refused() -> None:
    whole = torch.zeros(5, dtype=torch.int8)
    parts = {"a": (whole[:3], Constant(1)), "b": (whole[2:], Constant(2))}
    with pytest.raises(ValueError, match="share memory"):
        fill(parts, seed=0)
    assert whole.tolist() == [0] * 5


def test_tensors_that_share_memory_are_refused() -> None:
    whole = torch.zeros(10)
    halves: dict[str, tuple[torch.Tensor, Distribution]] = {
        "low": (whole[:5], Normal(1.0)),
        "high": (whole[5:], Normal(1.0)),
        "none": (whole[7:7], Normal(1.0)),
    }
    fill(halves, seed=0)
    with pytest.raises(ValueError, match=r"'low' and 'most'.*share memory"):
        fill({"low": halves["low"], "most": (whole[4:], Normal(1.0))}, seed=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(math.nan),
        lambda: Constant(-math.inf),
        lambda: Constant(3.5e38),
        lambda: Uniform(-0.1),
        lambda: Uniform(math.inf),
        lambda: Normal(-1.0),
        lambda: Normal(math.nan),
        lambda: TruncatedNormal(-1.0),
        lambda: TruncatedNormal(1.0, cut=0.0),
        lambda: TruncatedNormal(1.0, cut=math.nan),
    ],
)
def test_distributions_refuse_numbers_that_mean_nothing(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="must be"):
        make()


def test_distributions_take_all_that_float32_holds() -> None:
    largest = float(np.finfo(np.float32).max)
    for value in (-largest, largest):
        assert filled(1, Constant(value)).item() == value
    for distribution in (Uniform(0.0), Normal(0.0), TruncatedNormal(0.0)):
        assert not filled(9, distribution).any()


def test_describing_a_distribution_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, runpy; runpy.run_path('zoo/distribution.py', run_name='distribution'); "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    python(code, cwd=ROOT)
