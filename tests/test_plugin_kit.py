"""`zoo plugin check` and `zoo.testing`: the templates and the shipped catalogue pass all checks,
and each check fails on a component with the corresponding defect."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from breadth import slow
from broken_plugins import (
    BROKEN,
    CUT,
    FIELD,
    KEYS,
    KNOWS_NO_CACHE,
    MADE,
    MASKS,
    MIXED,
    QUERIES,
    RETURN,
    TAKES_MASK,
    UP,
    WITH_TORCH,
    Broken,
)

import zoo
from zoo.errors import RegistryError, SpecError
from zoo.int8 import Int8Linear
from zoo.plugin_kit.check import check_plugins
from zoo.plugin_kit.hosts import complete, host_data, with_hosts
from zoo.plugin_kit.passed_on import declared
from zoo.plugin_kit.project import new_plugin
from zoo.plugin_kit.report import PromiseError, Report
from zoo.registry import Registry, read_layers, shipped_registry
from zoo.reports.listing import every_plugin
from zoo.slots import SLOTS
from zoo.testing import check_plugin
from zoo.training.low_rank import add_updates
from zoo.training.tables import Lora

pytestmark = pytest.mark.usefixtures("kit_processes")
ROOT = Path(__file__).parent.parent

EVERY = {"imports", "schema", "example", "meta", "layout", "determinism", "saving"}
OF_MODULES = EVERY | {"interface", "rows", "modes", "gradients", "precision", "devices", "compiles"}
OF_SLOTS = {
    "builder": {"masks", "cache", "branches", "declared"},
    "block": {"masks", "positions", "cache", "branches", "declared"},
    "attention": {"masks", "positions", "cache"},
    "ffn": {"tokens"},
    "norm": {"tokens"},
    "embedding": {"masks", "tokens"},
    "head": {"masks", "tokens"},
}

STATISTICS = '''
from typing import TYPE_CHECKING

from zoo.layout import Layout, Tensor, vector
from zoo.slots import Norm


class Statistics(Norm):
    """x / scale, where the scale is the batch's in training and the mean of those elsewhere."""

    def layout(self) -> Layout:
        return Layout({"scale": Tensor((), "constant", value=1.0, buffer=True)})

    def build(self):
        import torch
        from torch import nn

        class Module(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("scale", torch.ones(()))

            def forward(self, x):
                if not self.training:
                    return x / self.scale
                with torch.no_grad():
                    self.scale.mul_(0.9).add_(0.1 * x.std())
                return x / x.std()

        return Module()
'''


BUILT_UPON = """
from typing import Annotated

from zoo.component import Part, Size
from zoo.layout import Layout
from zoo.slots import Builder
from zoo_components.norm import RmsNorm
from zoo_components.stack import EncoderStack


class MyNorm(RmsNorm):
    eps: float = 1e-3


class MyBuilder(Builder):
    vocab: Size
    stack: Annotated[EncoderStack, Part(vocab="vocab")]

    def layout(self):
        return Layout({"stack": self.stack.layout()})

    def build(self):
        from zoo.transformer import AttentionMaps, Transformer

        class Module(Transformer):
            def __init__(self, stack):
                super().__init__()
                self.stack = stack

            def forward(self, source, *, source_mask=None, return_attention=False):
                x, maps = self.stack(source, mask=source_mask, return_weights=return_attention)
                return (x, AttentionMaps(encoder=maps["self_attn"])) if return_attention else x

        return Module(self.stack.build())
"""


FORGETFUL = """
from zoo_components.builders import Decoder, EncoderDecoder


class Forgetful({base}):
    @property
    def generation(self):
        return super().generation._replace({value})
"""

EXTRA = {
    UP: f'"extra": linear(self.d_model, 3),\n                {UP}',
    MADE: f"{MADE}\n            self.extra, self.auxiliary_loss = Linear(d_model, 3), None",
    RETURN: "extra = self.extra(x).square().mean(-1)\n"
    "            extra = extra if mask is None else extra * mask\n"
    "            self.auxiliary_loss = extra.sum() if self.training else None\n"
    f"            {RETURN}",
    FIELD: FIELD + MASKS,
    **TAKES_MASK,
}
"""A network with a map that only training uses, by `auxiliary_loss`."""


def project(folder: Path, text: str = "format = 1\n") -> Path:
    """Return the registry of an empty project."""
    registry = folder / "registry.toml"
    registry.write_text(text)
    return registry


def layered(registry: Path) -> Registry:
    return read_layers([shipped_registry(), registry])


@pytest.fixture(scope="module")
def broken_reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Report]:
    """Return the report on each broken component that is tested. All are in one project, which
    shows that none affects the reports on the others."""
    tested = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and (item.module, item.originalname) == (request.module, TELLS)
    }
    return reports_of(sorted(tested), project(tmp_path_factory.mktemp("broken")))


def reports_of(names: list[str], registry: Path) -> dict[str, Report]:
    for name in names:
        break_template(registry, name, BROKEN[name])
    plugins = [f"{BROKEN[name].slot}.{name}" for name in names]
    return dict(zip(names, check_plugins(plugins, layered(registry)), strict=True))


def break_template(registry: Path, name: str, broken: Broken) -> None:
    path, _ = new_plugin(broken.slot, name, registry)
    text = path.read_text()
    for old, new in broken.change.items():
        assert text.count(old) == 1, (name, old)
        text = text.replace(old, new)
    line = "from functools import cache" if "functools" in text else "from zoo.component"
    path.write_text(text.replace(line, f"{broken.imports}\n{line}", 1))


ONE_FOR_EACH_CHECK = {broken.failing[0]: name for name, broken in BROKEN.items()}
TELLS = "test_a_broken_promise_is_told"


@pytest.mark.parametrize(
    "name",
    [name if name in ONE_FOR_EACH_CHECK.values() else slow(name) for name in BROKEN],
)
def test_a_broken_promise_is_told(name: str, broken_reports: dict[str, Report]) -> None:
    report, broken = broken_reports[name], BROKEN[name]
    reasons = {check.name: check.reason for check in report.checks if check.ok is False}
    assert tuple(reasons) == broken.failing, report.text()
    assert broken.reason in reasons[broken.failing[0]]
    assert not report.ok


def test_each_check_fails_on_something() -> None:
    assert {*ONE_FOR_EACH_CHECK} == {
        *OF_MODULES.union(*OF_SLOTS.values()),
        "cuts",
    }


def test_after_a_broken_link_the_rest_is_not_run(tmp_path: Path) -> None:
    report = reports_of(["other_shape"], project(tmp_path))["other_shape"]
    last = (
        "interface, determinism, rows, saving, modes, gradients, precision, devices, compiles, "
        "tokens"
    )
    assert report.text().endswith(f"\n    not run: {last}")
    states = {check.name: check.ok for check in report.checks}
    assert states == {
        **dict.fromkeys(["imports", "schema", "example", "meta"], True),
        "layout": False,
        **dict.fromkeys(
            OF_MODULES - {"imports", "schema", "example", "meta", "layout"} | {"tokens"}, None
        ),
    }


@pytest.fixture(scope="module")
def shipped() -> list[Report]:
    registry = read_layers([shipped_registry()])
    return check_plugins(every_plugin(registry), registry)


@pytest.mark.parametrize(
    "slot",
    [slot if slot in ("attention", "ffn", "builder") else slow(slot) for slot in SLOTS],
)
def test_the_template_of_each_slot_keeps_all_promises(slot: str, tmp_path: Path) -> None:
    registry = project(tmp_path)
    new_plugin(slot, "mine", registry)
    [report] = check_plugins([f"{slot}.mine"], layered(registry))
    assert report.ok, report.text()
    expected = EVERY if slot == "init" else OF_MODULES
    assert {c.name for c in report.checks} == expected | OF_SLOTS.get(slot, set())


def test_a_new_block_tells_its_network_what_is_padding(tmp_path: Path) -> None:
    registry = project(tmp_path)
    new_plugin("block", "mine", registry)
    spec = (
        'format = 1\nname = "m"\nbuilder = "decoder"\nvocab = 20\nn_layers = 1\nd_model = 8\n'
        'n_heads = 2\nd_ff = 12\nblock = "mine"\n'
        'ffn = { kind = "moe", n_experts = 4, top_k = 2, auxiliary_loss = 0.1 }\n'
    )
    model = zoo.build(spec, dtype=torch.float64, registry=layered(registry)).train()
    ids = torch.randint(1, 20, (1, 7), generator=torch.Generator().manual_seed(0))
    model(ids)
    expected = zoo.auxiliary_loss(model)
    padded = torch.cat([ids, torch.zeros_like(ids)], 1)
    model(padded, target_mask=padded != 0)
    torch.testing.assert_close(zoo.auxiliary_loss(model), expected)


def test_a_new_block_passes_on_a_scheme_that_its_attention_reads(tmp_path: Path) -> None:
    registry = project(tmp_path)
    new_plugin("block", "mine", registry)
    spec = {
        "format": 1,
        "name": "m",
        "builder": "encoder",
        "vocab": 20,
        "n_layers": 1,
        "d_model": 8,
        "n_heads": 2,
        "d_ff": 12,
        "attention": "disentangled",
        "position": {"kind": "disentangled", "max_distance": 4},
    }
    ids = torch.randint(1, 20, (1, 7), generator=torch.Generator().manual_seed(0))
    mine, shipped = (
        zoo.build({**spec, "block": kind}, dtype=torch.float64, registry=layered(registry))
        for kind in ("mine", "residual")
    )
    torch.testing.assert_close(mine(ids), shipped(ids), rtol=0, atol=1e-12)


def test_the_maps_of_the_templates_take_updates_and_8_bits(tmp_path: Path) -> None:
    registry = project(tmp_path)
    for slot in ("attention", "ffn", "head"):
        new_plugin(slot, f"my_{slot}", registry)
    spec = (
        'format = 1\nname = "m"\nbuilder = "decoder"\nvocab = 20\nn_layers = 1\nd_model = 256\n'
        'n_heads = 2\nd_ff = 256\nattention = "my_attention"\nffn = "my_ffn"\n'
        'head = { kind = "my_head", n_classes = 256 }\n'
    )
    model = zoo.build(spec, registry=layered(registry))
    maps = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    assert len(maps) == 4 + 2 + 1
    adapted = copy.deepcopy(model)
    weights = [f"{name}.weight" for name in maps]
    add_updates(adapted, weights, Lora(weights=("*",), rank=2), seed=0)
    assert {f"{name}.lora_a" for name in maps} <= dict(adapted.named_parameters()).keys()
    zoo.quantize_weights(model)
    assert all(isinstance(model.get_submodule(name), Int8Linear) for name in maps)


def test_the_templates_are_clean(tmp_path: Path) -> None:
    """For ruff and `mypy --strict`; so is the component that the tutorial makes from one."""
    registry = project(tmp_path)
    slots = (*SLOTS, "source")
    written = [file for slot in slots for file in new_plugin(slot, f"my_{slot}", registry)]
    page = (ROOT / "docs" / "plugins.md").read_text()
    tutorial = re.findall(r"```python\n(\"\"\"`gated_bottleneck`.*?)```", page, flags=re.DOTALL)
    assert len(tutorial) == 2
    for number, text in enumerate(tutorial):
        written.append(tmp_path / f"tutorial_{number}.py")
        written[-1].write_text(text)
    mypy = [sys.executable, "-m", "mypy", "--strict", *map(str, written)]
    done = subprocess.run(mypy, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--line-length", "100", "."]
    rules = ["--select", "E,F,W,I,B,UP,N,SIM,RUF,C4,PIE,RET", "--target-version", "py311"]
    subprocess.run([*ruff, "check", *rules, *options], cwd=tmp_path, check=True)
    subprocess.run([*ruff, "format", "--check", *options], cwd=tmp_path, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("slot", [*SLOTS, "source"])
def test_the_shipped_catalogue_keeps_all_promises(slot: str, shipped: list[Report]) -> None:
    reports = [report for report in shipped if report.plugin.startswith(f"{slot}.")]
    assert reports
    assert [report.text() for report in reports if not report.ok] == []


def check_changed(folder: Path, slot: str, change: dict[str, str]) -> None:
    registry = project(folder)
    break_template(registry, "changed", Broken(slot, change, (), ""))
    check_plugin(slot, "changed", registry=registry)


def test_an_attention_without_a_cache_keeps_all_promises(tmp_path: Path) -> None:
    check_changed(tmp_path, "attention", KNOWS_NO_CACHE)


@pytest.mark.slow
def test_an_attention_that_leaves_tokens_out_keeps_all_promises(tmp_path: Path) -> None:
    """The first token, among others, is no key, and one that is turned does not show."""
    left_out = """\
            if memory is None:
                chosen = (x[..., 6] > 0)[..., None, None, :]
                mask = chosen if mask is None else mask & chosen
"""
    masked = "            if mask is not None:  #"
    change = {**KNOWS_NO_CACHE, masked: f"{left_out}{masked}"}
    check_changed(tmp_path, "attention", change)


def test_a_default_of_dropout_hides_nothing(tmp_path: Path) -> None:
    check_changed(
        tmp_path, "embedding", {"dropout: Shared[Probability] = 0.0": "dropout: float = 0.5"}
    )


@pytest.mark.slow
def test_a_network_that_can_be_cut_keeps_all_promises(tmp_path: Path) -> None:
    registry = project(tmp_path)
    break_template(registry, "cut", Broken("ffn", CUT, (), ""))
    [report] = check_plugins(["ffn.cut"], layered(registry))
    assert report.ok, report.text()
    assert report.checks[-1].name == "cuts"


@pytest.mark.slow
def test_a_block_that_sees_later_tokens_says_so_and_keeps_all_promises(tmp_path: Path) -> None:
    """It adds the mean of all tokens except padding."""
    added = 'x = self.added("ffn", x, fed)'
    mean = """\
            tokens = x.new_ones(x.shape[:2])
            if context.tokens is not None:
                tokens = context.tokens.to(x.dtype)
            shares = tokens / tokens.sum(-1, keepdim=True).clamp(min=1)
            x = x + (shares[..., None] * x).sum(-2, keepdim=True)
"""
    says = {
        "return attention + network": "return attention + network + ('the mean',)",
        'return (f"ffn `{self.ffn.kind}`",) if self.ffn.looks_ahead else ()': (
            "return ('the mean',)"
        ),
    }
    check_changed(tmp_path, "block", {added: f"{mean.strip()}\n            {added}", **says})


@pytest.mark.slow
def test_a_formula_of_a_shipped_component_may_be_changed(tmp_path: Path) -> None:
    """As docs/plugin-reference.md says it, with its lines."""
    page = (ROOT / "docs/plugin-reference.md").read_text()
    (lines,) = re.findall(r"^      class PartialRmsNorm.*?return Module$", page, re.M | re.S)
    imports = (
        "from __future__ import annotations\n\nimport math\nfrom functools import cache\n"
        "from typing import TYPE_CHECKING, Any\n\nfrom zoo.component import PositiveFloat\n"
        "from zoo_components.norm import RmsNorm\n\n"
        "if TYPE_CHECKING:\n    import torch\n    from torch import nn\n\n\n"
    )
    (tmp_path / "partial.py").write_text(imports + textwrap.dedent(lines) + "\n")
    target = 'partial = "partial.py:PartialRmsNorm"'
    registry = tmp_path / "registry.toml"
    registry.write_text(f"format = 1\n[norm]\n{target}\n")
    check_plugin("norm", "partial", registry=registry)
    described = layered(registry).plugin("norm", "partial")
    norm = described.model_validate({"kind": "partial", "width": 8, "share": 0.25}).build()
    x = torch.randn(5, 8, dtype=torch.float64)
    expected = x / (x[:, :2].square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(norm.double()(x), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_block_may_decide_on_the_norms_of_its_branches(tmp_path: Path) -> None:
    """As docs/plugin-reference.md says it, with its lines."""
    page = (ROOT / "docs/plugin-reference.md").read_text()
    given, bare, ffn, attention = re.findall(
        r"^      ((?:inner|bare|ffn|self_attn): .*norm.*|.*Given\[NormPlacement\].*)$", page, re.M
    )
    (refusal,) = re.findall(r"^      if self\.self_attn\.norms:\n(?:          .*\n)+", page, re.M)
    check = "        if self.memory_width is not None:\n"
    registry = project(tmp_path)
    change = {
        'self_attn: Annotated[Attention, Slot("attention")]': "\n    ".join(
            (given, bare, attention)
        ),
        'ffn: Annotated[FeedForward, Slot("ffn")]': ffn,
        check: refusal.replace("      if", "        if", 1).replace("          r", "            r")
        + check,
        "from zoo.component import Slot": "from zoo.component import Given, Slot, contradiction",
        "import Attention, Block,": "import Attention, Block, NormPlacement,",
    }
    break_template(registry, "mine", Broken("block", change, (), ""))
    check_plugin("block", "mine", registry=registry)
    spec = (
        'format = 1\nname = "m"\nbuilder = "decoder"\nvocab = 20\nn_layers = 1\nd_model = 8\n'
        'n_heads = 2\nd_ff = 12\nblock = "mine"\nnorm_placement = "pre"\n'
    )
    names = list(zoo.read_spec(spec, registry=layered(registry)).tensors)
    norms = {name.rpartition(".")[0] for name in names if "_norm" in name}
    assert norms == {"decoder.layers.0.ffn.post_norm"}
    own = 'self_attn = { norms = ["pre"] }\n'
    with pytest.raises(SpecError) as caught:
        zoo.read_spec(spec + own, registry=layered(registry))
    assert "this block has no norms around its attention" in str(caught.value)
    assert ":11:" in str(caught.value).split("error")[0]


def test_a_norm_may_have_a_width_that_follows_from_others(tmp_path: Path) -> None:
    """As docs/plugin-reference.md says it, with its lines."""
    page = (ROOT / "docs/plugin-reference.md").read_text()
    lines = re.findall(r"^      ((?:v_dim|v_norm): .*)$", page, re.M)
    assert len(lines) == 2
    registry = project(tmp_path)
    change = {
        FIELD: "\n    ".join((FIELD, *lines)) + "\n",
        UP: f'"v_norm": self.v_norm.layout(),\n                {UP}',
        MADE: f"{MADE}\n            self.v_norm = norm",
        "d_ff: int)": "d_ff: int, norm: nn.Module)",
        "d_ff=self.d_ff)": "d_ff=self.d_ff, norm=self.v_norm.build())",
        RETURN: RETURN.replace("relu()", "relu() * self.v_norm(x.repeat(1, 1, 2)).sum(-1, True)"),
        "import FeedForward": "import FeedForward, Norm",
    }
    imports = "from typing import Annotated\n\nfrom pydantic import Field\n\n"
    imports += "from zoo.component import Given, Slot"
    break_template(registry, "mine", Broken("ffn", change, (), "", imports))
    sizes = {"vocab": 9, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 12}
    spec = {"format": 1, "name": "m", "builder": "decoder", "ffn": "mine", **sizes}
    model = zoo.build(spec, registry=layered(registry))
    assert model.get_parameter("decoder.layers.0.ffn.v_norm.weight").shape == (16,)
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 9)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["rotation", "bias"])
def test_an_attention_that_refuses_what_positions_give_says_so(option: str, tmp_path: Path) -> None:
    refusal = f"if {option} is not None:\n                raise ValueError('not with positions')"
    says = f"""\
    @property
    def takes_{option}(self) -> bool:
        return False

"""
    unused = {
        "rotation": {QUERIES: "pass", KEYS: "return k, v"},
        "bias": {"scores = scores + bias": "pass"},
    }
    check = '    @model_validator(mode="after")\n'
    change = {
        MIXED: f"{refusal}\n            {MIXED}",
        **unused[option],
        check: says + check,
    }
    check_changed(tmp_path, "attention", change)


@pytest.mark.slow
def test_an_attention_may_refuse_a_mask_with_a_row_for_each_query(tmp_path: Path) -> None:
    """As a recurrence does, which has no weights for pairs."""
    refusal = (
        "if mask is not None and mask.shape[-2] > 1:\n                raise ValueError(mask.shape)"
    )
    check_changed(tmp_path, "attention", {MIXED: f"{refusal}\n            {MIXED}"})


@pytest.mark.slow
def test_an_attention_may_be_even_in_its_input(tmp_path: Path) -> None:
    """As where keys and values are products of two maps (Zhang et al. 2025, arXiv:2501.06425)."""
    maps = "k, v = self.heads(self.k_proj(source)), self.heads(self.v_proj(source))"
    products = maps.replace("(source)", "(source.square())")
    check_changed(tmp_path, "attention", {maps: products})


@pytest.mark.slow
def test_an_attention_may_have_a_table_that_ends(tmp_path: Path) -> None:
    table = "x.new_zeros(16)[torch.arange(k.shape[-2], device=x.device)]"
    check_changed(tmp_path, "attention", {MIXED: MIXED.replace("= ", f"= {table} + ")})


@pytest.mark.slow
def test_what_starts_at_zero_hides_nothing(tmp_path: Path) -> None:
    gate = {
        UP: f'"gate": vector(1),\n                {UP}',
        MADE: f"self.gate = nn.Parameter(torch.empty(1))\n            {MADE}",
        **WITH_TORCH,
        "import Layout, linear": "import Layout, linear, vector",
    }
    gated = RETURN.replace("= ", "= self.gate * ")
    check_changed(tmp_path, "ffn", {**gate, RETURN: gated})
    rounded = gated.replace("(x).relu()", "(x).half().to(x.dtype).relu()")
    (tmp_path / "rounded").mkdir()
    with pytest.raises(AssertionError, match="rounds to a narrower"):
        check_changed(tmp_path / "rounded", "ffn", {**gate, RETURN: rounded})


EXPERTS = '''
from zoo.component import Size
from zoo.layout import Layout, linear
from zoo.slots import FeedForward


class Experts(FeedForward):
    """The best expert of each token, times its share."""

    n_experts: Size = 64

    def layout(self):
        width, numbers = self.d_model, range(self.n_experts)
        maps = [linear(width, width, bias=False, residual=True) for _ in numbers]
        experts = Layout({str(number): one for number, one in enumerate(maps)})
        router = linear(self.d_model, self.n_experts, bias=False)
        return Layout({"router": router, "experts": experts})

    def build(self):
        import torch
        from torch import nn

        class Module(nn.Module):
            def __init__(self, width, number):
                super().__init__()
                self.router = nn.Linear(width, number, bias=False)
                self.experts = nn.ModuleList(
                    nn.Linear(width, width, bias=False) for _ in range(number)
                )

            def forward(self, x):
                share, best = self.router(x).softmax(-1).max(-1)
                weight = torch.stack([one.weight for one in self.experts])[best]
                return (weight @ x[..., None])[..., 0] * share[..., None]

        return Module(self.d_model, self.n_experts)
'''


@pytest.mark.slow
def test_more_experts_than_tokens_are_told_in_a_few_words(tmp_path: Path) -> None:
    registry = project(tmp_path, 'format = 1\n[ffn]\nexperts = "mine.py:Experts"\n')
    (tmp_path / "mine.py").write_text(EXPERTS)
    [report] = check_plugins(["ffn.experts"], layered(registry))
    told = reasons_of(report)["gradients"]
    assert re.match(r"no gradient reaches (part\.experts\.\d+\.weight[ ,]+){4}and \d+ more ", told)
    assert 'such as `example = {"n_experts": 4}`' in told
    check_plugin("ffn", "experts", values={"n_experts": 4}, registry=registry)


@pytest.mark.slow
def test_an_output_may_change_in_steps(tmp_path: Path) -> None:
    """As after a sign, whose gradient is that of its input: a small enough change of the input
    changes no output, without any rounding."""
    straight = RETURN.replace(
        "self.up_proj(x).relu()", "(h := self.up_proj(x)) + (h.sign() - h).detach()"
    )
    check_changed(tmp_path, "ffn", {RETURN: straight})


@pytest.mark.slow
def test_what_only_the_training_loss_needs_gets_a_gradient(tmp_path: Path) -> None:
    check_changed(tmp_path, "ffn", EXTRA)
    (tmp_path / "other").mkdir()
    unused = {**EXTRA, RETURN: RETURN}
    with pytest.raises(AssertionError, match=r"no gradient reaches part\.extra\.weight"):
        check_changed(tmp_path / "other", "ffn", unused)


@pytest.mark.parametrize(
    ("base", "value", "told"),
    [
        ("Decoder", "longest=None", "with 7 positions, `longest` is None"),
        ("Decoder", "changes=lambda *_: False", "`changes` says that they do not"),
        ("EncoderDecoder", "longest_source=None", "with 7 positions, `longest_source` is None"),
    ],
)
def test_a_builder_passes_on_what_its_positions_say(
    base: str, value: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FORGETFUL.format(base=base, value=value))
    own = project(tmp_path, 'format = 1\n[builder]\nmine = "mine.py:Forgetful"\n')
    registry = with_hosts(layered(own))
    spec = complete(host_data("builder", "mine", {}, registry), registry)
    with pytest.raises(PromiseError, match=told):
        declared(spec, registry)


@pytest.mark.slow
def test_constants_may_be_rounded() -> None:
    registry = read_layers([shipped_registry()])
    check_plugin("position", "alibi", values={"rounding": "bfloat16"}, registry=registry)


@pytest.mark.slow
def test_statistics_of_batches_excuse_another_output_in_training(tmp_path: Path) -> None:
    registry = project(tmp_path, 'format = 1\n[norm]\nstatistics = "statistics.py:Statistics"\n')
    (tmp_path / "statistics.py").write_text(STATISTICS)
    check_plugin("norm", "statistics", registry=registry)


def test_what_ships_can_be_built_upon(tmp_path: Path) -> None:
    """Also, a file may hold several components."""
    (tmp_path / "mine.py").write_text(BUILT_UPON)
    lines = '[norm]\nmine = "mine.py:MyNorm"\n[builder]\nmine = "mine.py:MyBuilder"\n'
    registry = project(tmp_path, f"format = 1\n{lines}")
    check_plugin("norm", "mine", registry=registry)
    check_plugin("builder", "mine", registry=registry)


def called(folder: Path, signature: str, states: str, *, more: str = "") -> Report:
    """Check a builder whose `forward` takes these arguments, and returns this as its states."""
    text = BUILT_UPON.replace("source, *, source_mask=None, return_attention=False", signature)
    line = "x, maps = self.stack(source, mask=source_mask, return_weights=return_attention)"
    assert line in text
    text = text.replace(line, f"x, maps = {states}")
    text = text.replace("    def layout", f"{more}    def layout").replace(
        "def __init__",
        """def mean(self, ids, mask, asked):
                x, maps = self.stack(ids, mask=mask, return_weights=asked)
                return x.mean(1), maps

            def __init__""",
    )
    (folder / "mine.py").write_text(f"from zoo.purpose import Reading\n{text}")
    registry = project(folder, 'format = 1\n[builder]\nmine = "mine.py:MyBuilder"\n')
    [report] = check_plugins(["builder.mine"], layered(registry))
    return report


def reasons_of(report: Report) -> dict[str, str]:
    return {check.name: check.reason for check in report.checks if check.ok is False}


STATED = """\
    @property
    def reading(self):
        return Reading(self.vocab)

"""
BOTH_STATED = """\
    @property
    def called_with(self):
        return Reading(self.vocab), Reading(self.vocab, mask="target_mask")

"""
TWO = "query, document, *, source_mask=None, target_mask=None, return_attention=False"
"""The masks of inputs that they are not named after."""


@pytest.mark.slow
def test_a_mask_that_a_reading_states_is_tested(tmp_path: Path) -> None:
    """Whatever the name of the input is."""
    signature = "ids, *, source_mask=None, return_attention=False"
    unmasked = "self.mean(ids, source_mask, return_attention)"
    found = reasons_of(called(tmp_path, signature, unmasked, more=STATED))
    told = "a token that `source_mask` hides changes the output at others\nhelp: what `mask` hides"
    assert found.keys() == {"masks"}
    assert found["masks"].startswith(told)


@pytest.mark.slow
def test_the_mask_of_each_input_is_tested(tmp_path: Path) -> None:
    unmasked = "self.mean(document, target_mask, return_attention)"
    found = reasons_of(called(tmp_path, TWO, unmasked, more=BOTH_STATED))
    told = "a token that `target_mask` hides changes the output at others\nhelp: what `mask` hides"
    assert found.keys() == {"masks"}
    assert found["masks"].startswith(told)


def test_a_target_has_the_mask_of_targets() -> None:
    """Where the inputs follow from how a model generates."""
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    vocabularies = {"source_vocab": 9, "target_vocab": 9}
    spec = zoo.read_spec(
        {"format": 1, "name": "m", "builder": "encoder_decoder", **sizes, **vocabularies}
    )
    assert [read.mask for read in spec.model.called_with] == ["source_mask", "target_mask"]


@pytest.mark.slow
def test_a_mask_that_nothing_ties_to_an_input_is_told(tmp_path: Path) -> None:
    unmasked = "self.mean(query, None, return_attention)"
    found = reasons_of(called(tmp_path, TWO, unmasked))
    assert found["masks"].startswith(
        "nothing says which input `source_mask`, `target_mask` is for: it is not tested\nhelp: "
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "signature",
    [
        "query, positive, negative, *, return_attention=False",
        "query, *, query_mask=None, return_attention=False, **more",
    ],
)
def test_a_builder_has_the_inputs_that_its_forward_needs(signature: str, tmp_path: Path) -> None:
    mask = "query_mask" if "query_mask" in signature else "None"
    used = f"self.stack(query, mask={mask}, return_weights=return_attention)"
    assert reasons_of(called(tmp_path, signature, used)) == {}


def test_a_builder_whose_forward_needs_an_option_is_told(tmp_path: Path) -> None:
    signature = "query, *, style, return_attention=False"
    used = "self.stack(query, return_weights=return_attention)"
    assert "argument: 'style'" in reasons_of(called(tmp_path, signature, used))["interface"]


INDENTED = '''
from pydantic import model_validator

from zoo.component import contradiction
from zoo_components.norm import RmsNorm

if True:

    class Bounded(RmsNorm):
        """An RMS norm with a bound
that is not the default."""

        bound: float = 1.0

        @model_validator(mode="after")
        def _check(self):
            if self.bound > 5.0:
                raise contradiction("too large", "{key}")
            return self
'''


def bounded(folder: Path, key: str) -> Path:
    """A project whose norm `bounded` raises a contradiction that points at a key."""
    (folder / "mine.py").write_text(INDENTED.replace("{key}", key))
    return project(folder, 'format = 1\n[norm]\nbounded = "mine.py:Bounded"\n')


def test_a_class_may_stand_inside_an_if(tmp_path: Path) -> None:
    """Also with a string that begins at the margin."""
    check_plugin("norm", "bounded", registry=bounded(tmp_path, "bound"))


def test_two_classes_of_one_name_are_told_with_their_lines(tmp_path: Path) -> None:
    registry = bounded(tmp_path, "bound")
    file = tmp_path / "mine.py"
    file.write_text(f"class Bounded:\n    pass\n\n\n{file.read_text()}\n\n{SECOND}")
    line = file.read_text().splitlines().index("class Bounded(RmsNorm):") + 1
    told = rf"2 classes of the name Bounded.*\n.*mine\.py:1\n.*mine\.py:{line}\n.*help: rename"
    with pytest.raises(AssertionError, match=told):
        check_plugin("norm", "bounded", registry=registry)


SECOND = 'class Bounded(RmsNorm):\n    """An RMS norm."""\n'


def test_a_wrong_key_is_told_with_its_line(tmp_path: Path) -> None:
    registry = bounded(tmp_path, "bond")
    number = (
        (tmp_path / "mine.py")
        .read_text()
        .splitlines()
        .index('                raise contradiction("too large", "bond")')
    )
    with pytest.raises(AssertionError, match=rf"mine\.py:{number + 1}\n.*did you mean `bound`"):
        check_plugin("norm", "bounded", registry=registry)


def test_a_contradiction_may_name_a_key_of_another_component_of_the_project(
    tmp_path: Path,
) -> None:
    """Its file is not run for this: other components may be in the making."""
    registry = bounded(tmp_path, "towers_wide")
    with pytest.raises(AssertionError, match="the key `towers_wide`, which no component has"):
        check_plugin("norm", "bounded", registry=registry)
    tower = "from zoo.slots import Block\n\n\nclass Tower(Block):\n    towers_wide: int = 1\n"
    (tmp_path / "tower.py").write_text(f"raise SystemExit\n{tower}")
    (tmp_path / "not_yet.py").write_text("class Tower(")
    with registry.open("a") as file:
        file.write('[block]\ntower = "tower.py:Tower"\nnot_yet = "not_yet.py:Tower"\n')
    check_plugin("norm", "bounded", registry=registry)


def test_check_plugin_raises_with_the_table(tmp_path: Path) -> None:
    registry = project(tmp_path)
    break_template(registry, "half", BROKEN["half"])
    with pytest.raises(
        AssertionError, match=r"(?s)ffn\.half: FAILED.*precision +FAILED .*narrower"
    ):
        check_plugin("ffn", "half", registry=registry)


def test_check_plugin_takes_values(tmp_path: Path) -> None:
    check_plugin(
        "ffn", "mlp", values={"d_ff": 8, "activation": "prelu"}, registry=project(tmp_path)
    )
    with pytest.raises(AssertionError, match="must be an integer"):
        check_plugin("ffn", "mlp", values={"d_ff": 8.5}, registry=str(project(tmp_path)))
    with pytest.raises(AssertionError, match="d_f"):
        check_plugin("ffn", "mlp", values={"d_f": 8}, registry=project(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("conv1d", {"kernel_size": 3}),  # reads what padding holds, and so takes no mask
        ("moe", {"n_experts": 4, "top_k": 2, "auxiliary_loss": 0.1}),  # takes a mask
    ],
)
def test_a_shipped_network_keeps_all_promises_with_other_values(
    kind: str, values: dict[str, float]
) -> None:
    check_plugin("ffn", kind, values=values, registry=read_layers([shipped_registry()]))


def test_check_plugin_of_an_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"did you mean `ffn\.mlp`"):
        check_plugin("ffn", "mpl", registry=project(tmp_path))


@pytest.mark.slow
def test_an_example_of_the_description_is_used(tmp_path: Path) -> None:
    registry = project(tmp_path)
    broken = BROKEN["bad_guess"]
    field, *_ = broken.change
    change = {field: broken.change[field] + '    example = {"ratio": 3.5}\n'}
    break_template(registry, "guessed", Broken("ffn", change, (), "", broken.imports))
    check_plugin("ffn", "guessed", registry=registry)
    # The passed values replace the example as a whole.
    with pytest.raises(AssertionError, match="greater than 3"):
        check_plugin("ffn", "guessed", values={"d_ff": 8}, registry=registry)


def wide(tmp_path: Path, stated: str) -> Path:
    """A project whose embedding `wide` projects vectors of 24 numbers, and states `stated`."""
    registry = project(tmp_path)
    (tmp_path / "plugins").mkdir(exist_ok=True)
    (tmp_path / "plugins" / "wide.py").write_text(WIDE.format(stated=stated))
    with registry.open("a") as file:
        file.write('\n[embedding]\nwide = "plugins/wide.py:Wide"\n')
    return registry


WIDE = '''
from zoo.layout import Layout, linear
from zoo.slots import Embedding


class Wide(Embedding):
    """A projection of vectors of another width than the model's."""

    takes_ids = False

    @property
    def input_width(self):
        return {stated}

    def layout(self):
        return Layout({{"proj": linear(24, self.d_model)}})

    def build(self, scheme=None):
        from torch import nn

        class Module(nn.Module):
            def __init__(self, d_model):
                super().__init__()
                self.proj = nn.Linear(24, d_model)
                self.positions = scheme

            def forward(self, x, positions, *, token_types=None, mask=None):
                x = self.proj(x)
                return x if self.positions is None else self.positions.embed(x, positions)

        return Module(self.d_model)
'''


def test_an_embedding_is_called_with_vectors_of_its_input_width(tmp_path: Path) -> None:
    check_plugin("embedding", "wide", registry=wide(tmp_path, "24"))


def test_a_wrong_input_width_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="`input_width` is 20"):
        check_plugin("embedding", "wide", registry=wide(tmp_path, "20"))


@pytest.mark.slow
def test_an_embedding_of_ids_needs_no_table(tmp_path: Path) -> None:
    registry = project(tmp_path)
    one_hot = "nn.functional.one_hot(ids, 11).to(self.tokens.weight.dtype)"
    table = {
        "import Layout, embedding": "import Layout, linear",
        "embedding(self.vocab or 0, self": "linear(self.vocab or 0, self",
        "nn.Embedding(": "nn.Linear(",
        "self.tokens(ids)": f"self.tokens({one_hot})",
    }
    break_template(registry, "one_hot", Broken("embedding", table, (), ""))
    check_plugin("embedding", "one_hot", registry=registry)
