"""Budgets: specs that are too large are refused at once, by arithmetic, unless an option allows
them."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest
from trials import calls, python

import zoo
from zoo.budget import Budget
from zoo.cli import run
from zoo.component import GIVEN, fields_of
from zoo.document import from_data
from zoo.errors import Findings, SpecError, ZooError
from zoo.field_rules import types_in
from zoo.plugin_kit.hosts import complete, host_data, with_hosts
from zoo.resolving.tables import REFUSED, Leaf, as_table

HOSTED = with_hosts(zoo.load_registry())
SPEC = """\
format = 1
name = "sized"
builder = "decoder"
vocab = {vocab}
d_model = {d_model}
n_heads = 1
n_layers = {n_layers}
d_ff = {d_ff}
max_length = {max_length}
"""


def spec(
    vocab: int = 10, d_model: int = 8, n_layers: int = 2, d_ff: int = 16, max_length: int = 32
) -> str:
    return SPEC.format(
        vocab=vocab, d_model=d_model, n_layers=n_layers, d_ff=d_ff, max_length=max_length
    )


def refusal(text: str, budget: Budget | None = None) -> str:
    registry = zoo.load_registry(budget=budget)
    with pytest.raises(SpecError) as caught:
        zoo.read_spec(text, registry=registry)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # 2 (16 + 1) d_ff, and what does not depend on it
        (spec(d_ff=9 * 10**10), "3,060,000,000,832 parameters, more than 999,999,999,999"),
        # 9999 layers of 6 d_model^2
        (spec(vocab=9 * 10**15, d_model=9 * 10**15, d_ff=9 * 10**15, n_layers=9999), "about 10^36"),
        (spec(n_layers=10_001), "10,001 layers, more than 10,000"),
        (spec(max_length=9 * 10**15), "bytes"),
    ],
    ids=["10^12 parameters", "10^36 parameters", "layers", "a table"],
)
def test_too_large(text: str, told: str) -> None:
    message = refusal(text)
    assert told in message
    assert "zoo --budget" in message
    zoo.read_spec(spec())  # plugins are imported before the work is measured
    assert calls(lambda: refusal(text)) < 10 * calls(lambda: zoo.read_spec(spec()))


@pytest.mark.parametrize(
    ("kind", "key"), [("conv2d_frontend", "n_convolutions"), ("waveform", "position_layers")]
)
def test_no_list_is_made_of_more_convolutions_than_64(kind: str, key: str) -> None:
    embedding = f'encoder.embedding = {{ kind = "{kind}", {key} = 65 }}\n'
    text = spec().replace('"decoder"\nvocab = 10', f'"encoder"\n{embedding}head = "none"')
    with pytest.raises(SpecError, match=f"`{key}` must be at most 64"):
        zoo.read_spec(text)


@pytest.mark.parametrize("name", zoo.load_registry().components())
def test_no_number_makes_a_description_long(name: str) -> None:
    """A huge number in any field is refused, or what follows from it is found by arithmetic."""
    slot, _, kind = name.partition(".")
    cls = HOSTED.plugin(slot, kind)
    late: list[str] = []
    for field, mark in fields_of(cls).items():
        if mark is GIVEN or int not in types_in(cls.model_fields[field].annotation):
            continue

        def interrupt(*_: object, field: str = field) -> None:
            late.append(field)
            raise TimeoutError

        data = host_data(slot, kind, {**cls.example, field: 9 * 10**15}, HOSTED)
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.alarm(3)
        with suppress(ZooError):
            assert complete(data, HOSTED).n_parameters >= 0
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not late


@pytest.mark.parametrize(
    "more", ["decoder = { share_layers = true }", 'attention = "cross_layer"', "n_layers_of = 1"]
)
def test_no_list_is_made_of_more_layers_than_allowed(more: str) -> None:
    with pytest.raises(SpecError) as caught:
        zoo.read_spec(spec(n_layers=9 * 10**15) + more)
    first, *others = caught.value.problems
    assert first.message == f"the stack has {9 * 10**15:,} layers, more than 10,000"
    # The other mistakes are told too.
    assert [one.message for one in others] == ["unknown key `n_layers_of`"] * ("_of" in more)


def test_numbers_of_300_digits_are_refused() -> None:
    assert "integer" in refusal(spec(d_ff=10**300))


def test_each_limit_is_the_largest_that_passes() -> None:
    found = zoo.read_spec(spec())
    n_bytes = 4 * (found.layout.n_elements + found.layout.n_computed)
    exact = Budget(parameters=found.n_parameters, layers=2, bytes=n_bytes)
    zoo.read_spec(spec(), registry=zoo.load_registry(budget=exact))
    for name, limit in [("parameters", found.n_parameters), ("layers", 2), ("bytes", n_bytes)]:
        assert f"--budget {name}=NUMBER" in refusal(spec(), Budget(**{name: limit - 1}))


def test_the_option_raises_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(spec(n_layers=10_001))
    assert run(["validate", str(path)]) == 2
    assert run(["--budget", "layers=10001", "validate", str(path)]) == 0
    for n_bytes, status in (("1kB", 2), ("1GB", 0)):
        assert run(["--budget", f"bytes={n_bytes}", "validate", "gpt2"]) == status
    capsys.readouterr()


def test_a_spec_cannot_raise_it() -> None:
    assert "unknown key" in refusal(spec() + "budget = 1\n")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("layers", "must be a positive integer, not ``"),
        ("layers=", "must be a positive integer, not ``"),
        ("layers=0", "must be a positive integer, not `0`"),
        ("layers=-1", "must be a positive integer, not `-1`"),
        ("layers=1.5", "must be a positive integer, not `1.5`"),
        ("layers=x", "must be a positive integer, not `x`"),
        ("layers=2kB", "must be a positive integer, not `2kB`"),
        ("layers=1e300", "must be a positive integer, not `1e300`"),
        ("key_depth=101", "keys cannot nest more than 100 deep"),
        ("leyers=5", "there is no budget `leyers`"),
    ],
)
def test_options_that_are_none(option: str, message: str) -> None:
    with pytest.raises(ZooError, match=message):
        Budget.from_options([option])


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("parameters=2e12", Budget(parameters=2_000_000_000_000)),
        ("layers=1", Budget(layers=1)),
        ("key_depth=100", Budget(key_depth=100)),
    ],
)
def test_options_that_are_taken(option: str, expected: Budget) -> None:
    found = Budget.from_options([option])
    assert found == expected
    assert all(type(limit) is int for limit in found)


def test_loading_is_budgeted(tmp_path: Path) -> None:
    zoo.save(zoo.build(spec()), tmp_path)
    small = zoo.load_registry(budget=Budget(parameters=10))
    with pytest.raises(SpecError, match="parameters"):
        zoo.load(tmp_path, registry=small)


def test_405_billion_parameters_are_shown_by_arithmetic() -> None:
    """It takes less than 500 MB, in a process of its own."""
    script = (
        "import re\n"
        "from zoo.cli import run\n"
        "assert run(['show', 'llama-3.1-405b']) == 0\n"
        # Not `ru_maxrss`, which a process inherits from its parent.
        "peak = int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "assert peak < 500_000, peak\n"
    )
    assert "405,853,388,800" in python(script)


def test_what_has_no_place_is_told_a_thousand_times_and_is_no_value() -> None:
    findings = Findings()
    data = {"bad": None, "worse": [None] * 5000}
    table = as_table(data, from_data(data, "<data>"), (), findings)
    assert len(findings) == 1000
    refused = table.entries["bad"]
    assert isinstance(refused, Leaf)
    assert refused.value is REFUSED


def test_the_docs_state_the_limits() -> None:
    page = " ".join((Path(__file__).parent.parent / "docs" / "build.md").read_text().split())
    parameters, layers, n_bytes, file_size, key_depth = Budget()
    assert (parameters, n_bytes) == (10**12 - 1, 4 * 10**12)
    assert f"fewer than 10^12 parameters and at most {layers:,} layers" in page
    assert "up to 4 TB in float32" in page
    assert f"up to {file_size // 1024} KiB, with keys up to {key_depth} deep" in page
    assert all(f"`{name}`" in page for name in Budget._fields)
