"""Error messages for plugins that fail when they are loaded, validated, described or built."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest
from trials import Refused, calls, spec

import zoo
from zoo.cli import run
from zoo.plugin_kit.check import check_plugins
from zoo.registry import read_layers, shipped_registry

HEAD = """from __future__ import annotations
from typing import Annotated, ClassVar
from pydantic import Field, field_validator, model_validator
from zoo.component import Given, Shared, Size, Slot
from zoo.layout import Layout, Tensor, linear
from zoo.slots import FeedForward, Init, Norm
"""
GOOD = """
class Mine(FeedForward):
    def layout(self):
        return Layout({"up_proj": linear(self.d_model, self.d_model)})

    def build(self):
        from torch import nn

        class Module(nn.Module):
            def __init__(self, d_model):
                super().__init__()
                self.up_proj = nn.Linear(d_model, d_model)

            def forward(self, x):
                return self.up_proj(x)

        return Module(self.d_model)
"""
CHECK = (
    GOOD
    + """
    @model_validator(mode="after")
    def _check(self):
"""
)
MEND = "mend the plugin"
WITHOUT_D_FF = spec('ffn = "mine"', without="d_ff")


def write_plugin(project: Path, code: str, target: str | None = None) -> None:
    """Make a project whose ffn `mine` is this code. The file is named by its content, as modules
    are imported once."""
    name = f"p{sha256(code.encode()).hexdigest()[:12]}.py"
    (project / "plugins").mkdir(exist_ok=True)
    (project / "plugins" / name).write_text(HEAD + code)
    target = f"plugins/{name}:Mine" if target is None else target
    (project / "registry.toml").write_text(f'format = 1\n\n[ffn]\nmine = "{target}"\n')
    (project / "spec.toml").write_text(WITHOUT_D_FF)


def test_the_plugin_that_the_cases_below_break_is_good(project: Path) -> None:
    write_plugin(project, GOOD)
    assert run(["build", "spec.toml"]) == 0


LOADING: dict[str, tuple[str, str, str]] = {
    "raises": ("raise RuntimeError('boom')", "RuntimeError: boom", MEND),
    "asserts": ("assert 1 == 2, 'no'", "AssertionError: no", MEND),
    "exits": ("import sys; sys.exit(0)", "SystemExit: 0", MEND),
    "is no Python": ("def f(:", "SyntaxError: invalid syntax", MEND),
    "misses a module": (
        "import not_there",
        "ModuleNotFoundError: No module named 'not_there'",
        "install `not_there`, which the plugin needs",
    ),
    "imports the file beside it": (
        "import beside",
        "ModuleNotFoundError: No module named 'beside'",
        "imported by itself",
    ),
    "imports relatively": (
        "from .beside import x",
        "ImportError: attempted relative import",
        "imported by itself",
    ),
    "is named otherwise": (GOOD.replace("Mine", "Mime"), "has no `Mine`", "did you mean `Mime`?"),
    "is no description": (
        "class Mine: pass",
        "is not a description for the slot `ffn`",
        "FeedForward",
    ),
    "is of another slot": (
        "class Mine(Norm): pass",
        "is not a description for the slot `ffn`",
        "FeedForward",
    ),
    "has a field over a method": (
        GOOD + "    build: Size = 3\n",
        "TypeError: the field `build` of Mine hides what Component states; choose another name",
        MEND,
    ),
    "has a field over a property": (
        GOOD + "    incremental: bool = False\n",
        "hides what FeedForward states; it is a property there: write `@property` and "
        "`def incremental(self)`",
        MEND,
    ),
    "has a field over a constant": (
        GOOD + "    example: dict[str, int] = {}\n",
        "hides what Plugin states; it is a constant there: write `example: ClassVar[...] = ...`",
        MEND,
    ),
    "holds a component without a mark": (
        GOOD + "    norm2: Norm | None\n",
        "the field `norm2` of Mine is a component: write `Annotated[..., Slot(...)]`",
        MEND,
    ),
    "holds a list": (
        GOOD + "    sizes: list[int] = [1]\n",
        "the field `sizes` of Mine can change: an array is a `tuple[..., ...]`",
        MEND,
    ),
    "holds a table": (
        GOOD + "    sizes: None | dict[str, int] = None\n",
        "the field `sizes` of Mine is a table: make it a component, `Annotated[..., Part(...)]`",
        MEND,
    ),
    "binds what is no field": (
        GOOD + "    inner: Annotated[Norm, Slot('norm', width='d_modle')]\n",
        "the field `inner` of Mine binds width to no field before it; did you mean `d_model`?",
        MEND,
    ),
    "counts layers by what is no field": (
        "from zoo.component import LayerRules, Part\n"
        + GOOD
        + "    rules: Annotated[tuple[Norm, ...], LayerRules(Norm, count='n_layer')] = ()\n",
        "the field `rules` of Mine binds count to no field before it",
        MEND,
    ),
    "has a part that may be absent": (
        "from zoo.component import Part\n"
        + GOOD
        + "    inner: Annotated[Norm | None, Part()] = None\n",
        "the field `inner` of Mine is a part, and not of one class of components; "
        "what may be absent, or of several kinds, is a `Slot`",
        MEND,
    ),
    "binds what comes later": (
        GOOD + "    inner: Annotated[Norm, Slot('norm', width='later')]\n    later: Size = 3\n",
        "the field `inner` of Mine binds width to no field before it",
        MEND,
    ),
    "binds a field that is no dimension": (
        GOOD + "    inner: Annotated[FeedForward, Slot('ffn', inherit=False, d_ff='d_model')]\n",
        "the field `inner` of Mine binds `d_ff`, and FeedForward takes only its `Given` fields "
        "from its parent",
        MEND,
    ),
    "binds a dimension by a wrong name": (
        GOOD + "    inner: Annotated[Norm, Slot('norm', widht='d_model')]\n",
        "the field `inner` of Mine binds `widht`, and Norm takes only its `Given` fields "
        "from its parent; did you mean `width`?",
        MEND,
    ),
    "has a part that takes no such dimension": (
        "from zoo_components.stack import EncoderStack\nfrom zoo.component import Part\n"
        + GOOD
        + "    inner: Annotated[EncoderStack, Part(n_layers='d_model')]\n",
        "the field `inner` of Mine binds `n_layers`, and EncoderStack takes only its `Given`",
        MEND,
    ),
    "has several components in a slot": (
        GOOD + "    inner: Annotated[tuple[Norm, ...], Slot('norm', width='d_model')]\n",
        "the field `inner` of Mine is a slot, which holds one component, and its type is not one "
        "class of components",
        MEND,
    ),
    "has components of two classes in a slot": (
        GOOD + "    inner: Annotated[Norm | FeedForward | None, Slot('norm', width='d_model')]\n",
        "the field `inner` of Mine is a slot, which holds one component",
        MEND,
    ),
    "has a field over one of its slot": (
        GOOD + "    norm: int = 3\n",
        "`norm` of Mine goes over a field, which FeedForward states",
        "leave it out, or choose another name",
    ),
    "has a dimension of its parent": (
        GOOD + "    d_model: Size = 3\n",
        "`d_model` of Mine goes over a dimension that the parent gives, which FeedForward states",
        "leave it out, or choose another name",
    ),
    "has one value for a dimension of its parent": (
        GOOD + "    d_model: ClassVar[int] = 3\n",
        "`d_model` of Mine goes over a dimension that the parent gives, which FeedForward states",
        "leave it out, or choose another name",
    ),
    "has no such class": ("class Other: pass", "has no `Mine`", "allowed here: `Other`\n"),
    "has no class": ("", "has no `Mine`", "it defines no class"),
    "is an instance": (
        GOOD + "Mine = Mine.model_construct()\n",
        "is not a description for the slot `ffn`",
        "name the class, `Mine`, and not an instance of it",
    ),
    "is the class of its slot": (
        "from zoo.slots import FeedForward as Mine\n",
        "is not a description for the slot `ffn`",
        "make it a subclass of zoo.slots.FeedForward",
    ),
    "describes by a property": (
        GOOD.replace("    def layout", "    @property\n    def layout"),
        "TypeError: `layout` of Mine is a property: write `def layout(self)`",
        MEND,
    ),
    "describes by what nobody gives": (
        GOOD.replace("def layout(self)", "def layout(self, spec)"),
        "`layout` of Mine cannot be called as that of Component, missing a required argument: "
        "'spec': write `def layout(self)`",
        MEND,
    ),
    "does not take what its slot gives": (
        "from zoo.slots import Embedding\n"
        "class Mine(Embedding):\n    def build(self):\n        return None\n",
        "`build` of Mine cannot be called as that of Embedding, too many positional arguments: "
        "write `def build(self, scheme)`",
        MEND,
    ),
    "has a type that is not there": (
        GOOD + '    a: Nope[int]\n    b: "tuple[Nope, ...]"\n',
        "the type of `a` and of `b` of Mine names `Nope`, which is not defined",
        "import it at the top of the file, and not under `TYPE_CHECKING`",
    ),
    "has a type that is defined below, and that no spec can state": (
        GOOD + "    a: Table\n\n\nTable = dict\n",
        "the field `a` of Mine is a table: make it a component",
        MEND,
    ),
    "is a value": ("Mine = 3", "is not a description for the slot `ffn`", "FeedForward"),
}


@pytest.mark.parametrize(("code", "message", "help_"), LOADING.values(), ids=LOADING)
def test_a_plugin_that_cannot_be_loaded(
    code: str, message: str, help_: str, refused: Refused, project: Path
) -> None:
    write_plugin(project, code)
    (project / "plugins" / "beside.py").write_text("x = 3\n")
    told = refused("validate", "spec.toml")
    first, *lines = told.split("\n")
    assert first.startswith("registry.toml:4:1: error: ")
    assert message in first
    assert "    4 | mine = " in told
    assert 'spec.toml:9:7: note: named here\n    9 | ffn = "mine"\n      |       ^^^^^^\n' in told
    assert re.search(f"= help: .*{re.escape(help_)}", told)
    if " failed: " in first:  # only its own lines
        frames = [line for line in lines if re.search(r"\.py:\d+", line) and " | " not in line]
        assert frames
        assert all(line.startswith(f"  {project}") for line in frames)
        assert any(line and line in frames[-1] for line in code.splitlines())
    with pytest.raises(zoo.PluginError, match=re.escape(message)):
        zoo.read_spec("spec.toml")


@pytest.mark.parametrize(
    ("target", "message", "help_"),
    [
        ("not_there.mod:Mine", "there is no module `not_there`", "install its package"),
        (
            "zoo_components.not_there:Mine",
            "there is no module `zoo_components.not_there`",
            "install",
        ),
        ("zoo_components.ffn:Mpl", "`zoo_components.ffn` has no `Mpl`", "did you mean `Mlp`?"),
        ("plugins/mime.py:Mine", "there is no file `here/plugins/mime.py`", "`mine.py`?"),
        ("mine.py:Mine", "there is no file `here/mine.py`", "did you mean `plugins/mine.py`?"),
    ],
)
def test_a_plugin_that_is_missing(
    target: str, message: str, help_: str, refused: Refused, project: Path
) -> None:
    write_plugin(project, GOOD, target)
    (project / "plugins" / "mine.py").write_text(HEAD + GOOD)
    told = refused("validate", "spec.toml")
    first = f"registry.toml:4:1: error: ffn `mine` cannot be loaded: {message}\n"
    assert told.replace(str(project), "here").startswith(first)
    assert re.search(f"= help: .*{re.escape(help_)}", told)


def test_a_plugin_whose_name_is_too_long_for_a_file(refused: Refused, project: Path) -> None:
    write_plugin(project, GOOD, f"{'a' * 300}.py:Mine")
    told = refused("validate", "spec.toml").replace(str(project), "here")
    message = f"there is no file `here/{'a' * 300}.py`\n"
    assert told.startswith(f"registry.toml:4:1: error: ffn `mine` cannot be loaded: {message}")


def test_what_a_validator_says_of_a_default_is_not_told_of_a_wrong_value(
    refused: Refused, project: Path
) -> None:
    write_plugin(
        project,
        CHECK
        + "        if self.a == 3:\n            raise ValueError('3 is too few')\n"
        + "        return self\n\n    a: Size = 3\n",
    )
    assert "error: 3 is too few\n" in refused("validate", "spec.toml")
    (project / "spec.toml").write_text(spec('ffn = { kind = "mine", a = "x" }', without="d_ff"))
    told = re.findall("error: (.*)", refused("validate", "spec.toml"))
    assert told == ["`a` must be an integer, not the string `x`"]


def test_a_kind_that_nobody_states_is_no_place_of_a_contradiction(
    refused: Refused, project: Path
) -> None:
    """The kind is the registry's default, and the mistake is in the spec."""
    code = CHECK.replace("class Mine", "from zoo.component import contradiction\nclass Mine")
    code += "        raise contradiction('no', 'inner.kind')\n\n"
    write_plugin(project, code + "    inner: Annotated[Norm, Slot('norm', width='d_model')]\n")
    line = (project / "spec.toml").read_text().split("\n").index('ffn = "mine"') + 1
    assert refused("validate", "spec.toml").startswith(f"spec.toml:{line}:7: error: no\n")


def test_a_dimension_of_a_wrong_type_is_the_parents_mistake(
    refused: Refused, project: Path
) -> None:
    inner = "    inner: Annotated[Norm, Slot('norm', width='word')]\n"
    write_plugin(project, GOOD + "    word: str = 'x'\n" + inner)
    told = re.findall("error: (.*)", refused("validate", "spec.toml"))
    wrong = "it must be an integer, not the string `x`"
    assert told == [f"`layer_norm` gets the dimension `width` from its parent: {wrong}"]


VALIDATING: dict[str, tuple[str, str]] = {
    "raises": (CHECK + "        return {}['x']\n", "KeyError: 'x'"),
    "asserts": (
        CHECK + "        assert self.d_model > 100, 'too small'\n",
        "AssertionError: too small",
    ),
    "exits": (CHECK + "        raise SystemExit(3)\n", "SystemExit: 3"),
    "asserts of one value": (
        GOOD
        + "    a: Shared[Size] = Field(default=3, validate_default=True)\n"
        + "    @field_validator('a')\n    @classmethod\n    def _a(cls, value):\n"
        + "        assert value > 5, 'a > 5'\n        return value\n",
        "AssertionError: a > 5",
    ),
    "has a bad default": (
        GOOD + "    a: int = Field(default_factory=lambda data: data['nope'])\n",
        "KeyError: 'nope'",
    ),
    "returns nothing": (
        CHECK + "        pass\n",
        "a validator of Mine returned `None`; a validator `after` ends with `return self`",
    ),
    "returns nothing for a value": (
        GOOD
        + "    @field_validator('residual_scale')\n    @classmethod\n    def _a(cls, value):\n"
        + "        assert value\n",
        "a validator of Mine made None of `residual_scale`; a validator of a field ends with "
        "`return value`",
    ),
    "fails in a property that others read": (
        GOOD.replace("(FeedForward)", "(FeedForward)")
        + "    inner: Annotated[Norm, Slot('norm', width='d_model')]\n"
        + "    other: Annotated[Norm, Slot('norm', width='inner.nope')]\n",
        "reading `inner.nope` failed: AttributeError: 'LayerNorm' object has no attribute 'nope'",
    ),
}


@pytest.mark.parametrize(("code", "message"), VALIDATING.values(), ids=VALIDATING)
def test_a_plugin_that_fails_when_it_is_validated(
    code: str, message: str, refused: Refused, project: Path
) -> None:
    write_plugin(project, code)
    text = (project / "spec.toml").read_text()
    (project / "spec.toml").write_text(text + "residual_scale = 0.5\n")
    told = refused("validate", "spec.toml")
    assert told.count("error:") <= 2  # one for the encoder's and one for the decoder's network
    assert message in told
    assert "mend the plugin" in told
    with pytest.raises(zoo.PluginError, match=re.escape(message)):
        zoo.read_spec("spec.toml")


def test_a_value_error_of_a_plugin_is_an_error_of_the_spec(refused: Refused, project: Path) -> None:
    write_plugin(project, CHECK + "        raise ValueError('mine needs more')\n")
    assert refused("validate", "spec.toml") == (
        'spec.toml:9:7: error: mine needs more\n    9 | ffn = "mine"\n      |       ^^^^^^\n'
    )
    with pytest.raises(zoo.SpecError, match="mine needs more"):
        zoo.read_spec("spec.toml")


@pytest.mark.parametrize(
    ("refuses", "gives"),
    [
        ("takes_rotation", "turn queries and keys, and the self-attention takes no rotation"),
        ("takes_bias", "add a bias to the scores, and the self-attention takes none"),
    ],
)
@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (['position = "{kind}"'], "11:12"),
        (['decoder = { relative = "{kind}" }'], "11:24"),
        (['block = { self_position = { kind = "{kind}" } }'], "11:36"),
        (
            ['position = "none"', "[[decoder.layers]]", "at = [1]", 'position = "{kind}"'],
            "14:12",
        ),
    ],
)
def test_an_attention_that_refuses_what_positions_give(
    refuses: str, gives: str, lines: list[str], place: str, refused: Refused, project: Path
) -> None:
    kind, other = ("rotary", "alibi") if refuses == "takes_rotation" else ("alibi", "rotary")
    (project / "mine.py").write_text(f"""
from zoo_components.attention import MultiHead


class Mine(MultiHead):
    @property
    def {refuses}(self):
        return False
""")
    (project / "registry.toml").write_text('format = 1\n[attention]\nmine = "mine.py:Mine"\n')
    stated = spec('self_attn = "mine"', *lines)
    (project / "spec.toml").write_text(stated.replace("{kind}", kind))
    told = refused("validate", "spec.toml")
    if 'position = "{kind}"' in lines:
        gives += ': state `position = "none"` for layers with it'
    assert told.startswith(f"spec.toml:{place}: error: `{kind}` positions {gives}\n")
    assert "spec.toml:10:13: note: `block.self_attn.kind` is here\n" in told
    assert told.count("error:") == 1
    (project / "spec.toml").write_text(stated.replace("{kind}", other))
    zoo.read_spec("spec.toml")


def test_an_attention_that_is_causal_in_an_encoder(refused: Refused, project: Path) -> None:
    (project / "mine.py").write_text("""
from zoo_components.attention import MultiHead


class Mine(MultiHead):
    @property
    def only_causal(self):
        return True
""")
    (project / "registry.toml").write_text('format = 1\n[attention]\nmine = "mine.py:Mine"\n')
    of_decoder = spec("[decoder]", 'self_attn = "mine"')
    (project / "spec.toml").write_text(of_decoder)
    zoo.read_spec("spec.toml")
    of_encoder = spec("[encoder]", 'self_attn = "mine"')
    (project / "spec.toml").write_text(of_encoder)
    told = refused("validate", "spec.toml")
    assert told.startswith(
        "spec.toml:11:13: error: no token sees later ones in these layers, and in this stack "
        "tokens do: state `causal = true`"
    )
    assert told.count("error:") == 1
    (project / "spec.toml").write_text(of_encoder + "causal = true\n")
    zoo.read_spec("spec.toml")


def test_a_dimension_that_no_parent_gives(refused: Refused, project: Path) -> None:
    write_plugin(project, GOOD + "    depth: Given[int]\n")
    assert refused("validate", "spec.toml") == (
        "spec.toml:9:7: error: `mine` needs the dimension `depth`, which its parent does not give\n"
        '    9 | ffn = "mine"\n'
        "      |       ^^^^^^\n"
        "      = help: the plugin around it has to bind it: `Slot(..., depth=...)`\n"
    )


def test_a_plugin_that_holds_itself(refused: Refused, project: Path) -> None:
    write_plugin(project, GOOD + "    ffn: Annotated[FeedForward, Slot('ffn')]\n")
    # `d_ff`, a key of `mlp`, which is used in its place, is not reported as unknown.
    (project / "spec.toml").write_text(WITHOUT_D_FF + "d_ff = 8\n")
    assert refused("validate", "spec.toml") == (
        "spec.toml:9:7: error: `mine` would be its own `ffn`, which takes what is stated for `ffn` "
        "around it\n"
        '    9 | ffn = "mine"\n'
        "      |       ^^^^^^\n"
        "      = help: state another kind for its `ffn`; a plugin rules this out by "
        '`Slot("ffn", inherit=False)`\n'
    )


def test_a_plugin_that_holds_another_of_its_slot(project: Path) -> None:
    write_plugin(project, GOOD + "    inner: Annotated[FeedForward, Slot('ffn')]\n")
    text = WITHOUT_D_FF.replace('"mine"', '{ kind = "mine", inner = "mlp" }')
    assert zoo.read_spec(text + "d_ff = 8\n").model.encoder.block.ffn.inner.kind == "mlp"
    inner = '{ kind = "mine", inner = { kind = "mine", inner = "mlp" } }'
    twice = WITHOUT_D_FF.replace('"mine"', inner)
    assert zoo.read_spec(twice + "d_ff = 8\n").model.encoder.block.ffn.inner.inner.kind == "mlp"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("mode: Path = Path('x')", "the field `mode` of Mine is `x`, a PosixPath, which no spec"),
        ("mode: tuple[Path] = (Path('x'),)", "the field `mode` of Mine is `x`, a PosixPath"),
        ("at: date = date(2020, 1, 1)", "the field `at` of Mine is `2020-01-01`, a date, which"),
        ("x: float = float('nan')", "the values of bad failed: FloatDomainError: nan"),
        ("x: int = 2**70", "the values of bad failed: IntegerDomainError"),
    ],
)
def test_a_default_that_no_spec_can_hold(
    field: str, message: str, refused: Refused, project: Path
) -> None:
    write_plugin(
        project, f"from datetime import date\nfrom pathlib import Path\n{GOOD}    {field}\n"
    )
    for command in ("validate", "build"):
        assert message in refused(command, "spec.toml")


def test_a_slot_that_is_none(refused: Refused, project: Path) -> None:
    inner = "    inner: Annotated[Norm, Slot('nrom', width='d_model')]\n"
    write_plugin(project, GOOD + inner)
    told = refused("validate", "spec.toml")
    assert told.startswith(
        "spec.toml:9:7: error: the field `inner` of `encoder.block.ffn` is of the slot `nrom`, "
        "which there is not\n"
    )
    assert "= help: did you mean `norm`?" in told


def test_an_array_is_a_tuple(project: Path) -> None:
    write_plugin(project, GOOD + "    sizes: tuple[tuple[int, ...], ...] = ()\n")
    text = WITHOUT_D_FF.replace('"mine"', '{ kind = "mine", sizes = [[1, 2], []] }')
    found = zoo.read_spec(text)
    assert found.model.encoder.block.ffn.sizes == ((1, 2), ())
    assert zoo.read_spec(found.to_toml()) == found


LAYOUT = '        return Layout({"up_proj": linear(self.d_model, self.d_model)})\n'
DESCRIBING: dict[str, tuple[str, str]] = {
    "raises": ("        raise KeyError('up')\n", "KeyError: 'up'"),
    "sets a value": (
        "        self.inner = 3\n",
        "ValidationError: `inner`: Instance is frozen",
    ),
    "asserts": ("        assert not self.d_model\n", "AssertionError"),
    "exits": ("        raise SystemExit(1)\n", "SystemExit: 1"),
    "returns another part": (
        '        return Layout({"up_proj": (8, 8)})\n',
        "TypeError: the part `up_proj` is (8, 8), not a Tensor or a Layout",
    ),
    "returns another shape": (
        '        return Layout({"up_proj": Tensor((8.5,))})\n',
        "TypeError: a shape is a tuple of sizes, not (8.5,)",
    ),
    "returns no tuple": (
        '        return Layout({"up_proj": Tensor(8)})\n',
        "TypeError: a shape is a tuple of sizes, not 8",
    ),
    "returns another role": (
        '        return Layout({"up_proj": Tensor((8, 8), "wieght")})\n',
        "TypeError: a role is one of weight, residual, embedding, bias, constant, cycle, not "
        "'wieght'",
    ),
    "returns a map of no size": (
        '        return Layout({"up_proj": Tensor((8, 8))})\n',
        "TypeError: a weight states `fan_in` and `fan_out`, which inits go by",
    ),
    "returns more idle elements than there are": (
        '        return Layout({"up_proj": Tensor((8,), "bias", idle=9)})\n',
        "TypeError: `idle` of 8 elements cannot be 9",
    ),
    "returns a table": (
        '        return Layout({"up_proj": {"weight": linear(8, 8), "bias": linear(8, 8)}})\n',
        "TypeError: the part `up_proj` is a dict, not a Tensor or a Layout",
    ),
}


@pytest.mark.parametrize(("code", "message"), DESCRIBING.values(), ids=DESCRIBING)
def test_a_plugin_whose_layout_fails(
    code: str, message: str, refused: Refused, project: Path
) -> None:
    assert LAYOUT in GOOD
    write_plugin(project, GOOD.replace(LAYOUT, code))
    for command in (["validate"], ["show"], ["show", "--tensors"], ["build"]):
        told = refused(*command, "spec.toml")
        assert told.startswith(f"error: `layout` of ffn.mine (Mine) failed: {message}")
        assert "zoo_components" not in told  # the stack and the block that called it
    with pytest.raises(zoo.PluginError, match=re.escape(message)):
        _ = zoo.read_spec("spec.toml").n_parameters


@pytest.mark.parametrize(
    ("code", "returned", "hint"),
    [
        ("pass", "None", "end it with `return` and the layout"),
        ("return Layout", "the class `Layout`", "return an instance of it"),
        (
            "return {'up_proj': 8}",
            "`{'up_proj': 8}`, a dict",
            "return an instance of zoo.layout.Layout",
        ),
    ],
    ids=["nothing", "the class", "a dict"],
)
def test_a_plugin_whose_layout_returns_no_layout(
    code: str, returned: str, hint: str, refused: Refused, project: Path
) -> None:
    write_plugin(project, GOOD.replace(LAYOUT, f"        {code}\n"))
    (file,) = project.glob("plugins/*.py")
    line = file.read_text().split("\n").index("    def layout(self):") + 1
    for command in (["validate"], ["show"], ["build"]):
        assert refused(*command, "spec.toml") == (
            f"error: `layout` of ffn.mine (Mine) returned {returned}, and not a zoo.layout.Layout\n"
            f"  {file}:{line}, in Mine.layout\n"
            f"      = help: {hint}\n"
        )


BUILDING: dict[str, tuple[str, str]] = {
    "raises": (
        "raise RuntimeError('cannot')",
        "`build` of ffn.mine (Mine) failed: RuntimeError: cannot",
    ),
    "asserts": ("assert False", "`build` of ffn.mine (Mine) failed: AssertionError"),
    "exits": ("raise SystemExit(0)", "`build` of ffn.mine (Mine) failed: SystemExit: 0"),
    "returns nothing": (
        "return None",
        "`build` of ffn.mine (Mine) returned None, and not a torch.nn.Module\n"
        "  {file}, in Mine.build\n"
        "      = help: end it with `return` and the module",
    ),
    "returns the class": ("return Module", "(Mine) returned the class `Module`, and not a torch"),
    "returns another thing": ("return [1, 2]", "(Mine) returned `[1, 2]`, a list, and not a torch"),
    "builds another width": (
        "return Module(9)",
        "up_proj.weight` is a float parameter [9, 9] in the module and a float parameter [8, 8] in",
    ),
}


@pytest.mark.parametrize(("code", "message"), BUILDING.values(), ids=BUILDING)
def test_a_plugin_whose_build_fails(
    code: str, message: str, refused: Refused, project: Path
) -> None:
    write_plugin(project, GOOD.replace("return Module(self.d_model)", code))
    assert run(["validate", "spec.toml"]) == 0
    (file,) = project.glob("plugins/*.py")
    line = file.read_text().split("\n").index("    def build(self):") + 1
    message = message.replace("{file}", f"{file}:{line}")
    with pytest.raises(zoo.PluginError, match=re.escape(message)) as told:
        zoo.build("spec.toml")
    assert "zoo_components" not in str(told.value)  # the stack and the block that called it
    assert message.partition("\n")[0] in refused("build", "spec.toml", "--device", "meta")
    assert list(project.glob("bad*")) == []


@pytest.mark.parametrize(
    ("slot", "code", "message"),
    [
        (
            "init",
            "class Mine(Init):\n    def distribution(self, tensor):\n        raise SystemExit(1)\n",
            "the init of bad, for `encoder.embed.tokens.weight` [10, 8], failed: SystemExit: 1",
        ),
        (
            "init",
            "class Mine(Init):\n    def distribution(self, tensor):\n        return 0.1\n",
            "starts from 0.1, which is not a distribution",
        ),
        (
            "builder",
            "from zoo.slots import Builder\n"
            "class Mine(Builder):\n    def build(self):\n        return None\n",
            "`build` of builder.mine (Mine) returned None, and not a zoo.Transformer",
        ),
        (
            "builder",
            "from zoo.slots import Builder\n"
            "class Mine(Builder):\n    def build(self):\n"
            "        from torch import nn\n        return nn.Identity()\n",
            "(Mine) returned `Identity()`, a Identity, and not a zoo.Transformer",
        ),
        (
            "builder",
            "from zoo.slots import Builder\n"
            "class Mine(Builder):\n    def build(self):\n"
            "        from torch import nn\n        return nn.ModuleList([nn.Identity()])\n",
            "(Mine) returned a ModuleList, and not a zoo.Transformer",
        ),
        (
            "builder",
            "from zoo.slots import Builder\n"
            "class Mine(Builder):\n    def layout(self):\n        raise SystemExit(1)\n",
            "`layout` of builder.mine (Mine) failed: SystemExit: 1",
        ),
        (
            "builder",
            "from zoo.slots import Builder\n"
            "class Mine(Builder):\n    def layout(self):\n        return None\n",
            "`layout` of builder.mine (Mine) returned None, and not a zoo.layout.Layout",
        ),
        (
            "builder",
            "from zoo.slots import Builder\n"
            "class Mine(Builder):\n    def ties(self):\n        raise SystemExit(1)\n",
            "the ties of bad failed: SystemExit: 1",
        ),
        (
            "builder",
            "from zoo.slots import Builder\n"
            "class Mine(Builder):\n    def ties(self):\n        return {'a.b': 'c'}\n",
            "the ties of bad failed: TypeError: there is no tensor `a.b`",
        ),
        (
            "builder",
            "from zoo.layout import Layout, vector\nfrom zoo.slots import Builder\n"
            "class Mine(Builder):\n    def layout(self):\n"
            "        return Layout({'a': vector(3), 'b': vector(4)})\n"
            "    def ties(self):\n        return {'b': 'a'}\n",
            "TypeError: `b` and `a` cannot be one: they are (4,) and (3,)",
        ),
        (
            "builder",
            "from zoo.layout import Layout, LayerList, vector\nfrom zoo.slots import Builder\n"
            "class Mine(Builder):\n    def layout(self):\n"
            "        return Layout({'layers': LayerList((([0], vector(3)),))})\n",
            "`layout` of builder.mine (Mine) failed: TypeError: a group of layers has a Tensor, "
            "not a Layout",
        ),
        (
            "builder",
            "from zoo.layout import Layout, LayerList\nfrom zoo.slots import Builder\n"
            "class Mine(Builder):\n    def layout(self):\n"
            "        return Layout({'layers': LayerList(((3, Layout()),))})\n",
            "the layout of bad failed: TypeError: object of type 'int' has no len()",
        ),
    ],
)
def test_an_init_or_a_builder_that_fails(slot: str, code: str, message: str, project: Path) -> None:
    write_plugin(project, code)
    registry = (project / "registry.toml").read_text().replace("[ffn]", f"[{slot}]")
    (project / "registry.toml").write_text(registry)
    text = (
        spec('init = "mine"') if slot == "init" else 'format = 1\nname = "bad"\nbuilder = "mine"\n'
    )
    with pytest.raises(zoo.PluginError, match=re.escape(message)):
        _ = zoo.read_spec(text).n_parameters if "ties" in code else zoo.build(text)


def test_a_broken_plugin_hurts_nobody_who_does_not_use_it(project: Path) -> None:
    write_plugin(project, "raise RuntimeError('boom')")
    (project / "spec.toml").write_text(spec())
    assert run(["validate", "spec.toml"]) == 0
    assert run(["list"]) == 0


INTERRUPTED = {
    "as it is": "raise KeyboardInterrupt",
    # As Python 3.11 does in every class body, so in each enum, and C extensions when imported.
    "another error's cause": "raise RuntimeError('calling __set_name__') from KeyboardInterrupt()",
    "another error's context": """
try:
    raise KeyboardInterrupt
except KeyboardInterrupt:
    raise ImportError("initialization failed")
""",
}


@pytest.mark.parametrize("code", INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupt_is_no_failure_of_the_plugin_that_it_comes_in(
    code: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plugin(project, code)
    with pytest.raises(KeyboardInterrupt):
        zoo.build("spec.toml")
    assert run(["build", "spec.toml"]) == 130
    assert capsys.readouterr().err.split() == ["interrupted"]


@pytest.mark.parametrize("code", INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupt_breaks_no_promise(code: str, project: Path) -> None:
    body = code.strip().replace("\n", "\n        ")
    write_plugin(
        project, GOOD.replace('return Layout({"up_proj"', f'{body}\n        Layout({{"up_proj"')
    )
    registry = read_layers([shipped_registry(), project / "registry.toml"])
    with pytest.raises(KeyboardInterrupt):
        check_plugins(["ffn.mine"], registry)


def test_a_module_that_fails_shows_its_own_lines_and_not_those_of_torch(
    project: Path,
) -> None:
    write_plugin(project, GOOD.replace("self.up_proj(x)", "self.up_proj(x[..., :1])"))
    registry = read_layers([shipped_registry(), project / "registry.toml"])
    [report] = check_plugins(["ffn.mine"], registry)
    said = next(check.reason for check in report.checks if check.name == "interface")
    first, *frames = said.split("\n")
    assert first.startswith("interface failed: RuntimeError: mat1 and mat2 shapes")
    assert len(frames) == 1
    assert frames[0].startswith(f"  {project}")
    assert frames[0].endswith("in forward: return self.up_proj(x[..., :1])")


def test_a_name_of_another_slot(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text(spec('ffn = "rms_norm"', without="d_ff"))
    assert "= help: `rms_norm` is registered as norm, not as ffn\n" in refused(
        "validate", "spec.toml"
    )


def test_weights_are_not_held_against_the_most_similar_component(
    refused: Refused, project: Path
) -> None:
    write_plugin(project, GOOD + "    inner: Size = 3\n")
    registry = project / "registry.toml"
    registry.write_text(registry.read_text().replace("mine =", "mlp2 ="))
    (project / "spec.toml").write_text(WITHOUT_D_FF.replace("mine", "mlp2"))
    assert run(["build", "spec.toml", "-o", "out"]) == 0
    registry.write_text("format = 1\n")
    for command in ("show", "load"):
        told = refused(command, "out")
        assert "unknown ffn `mlp2`\n" in told
        assert told.count("error:") == 1
        assert told.endswith(
            "it is a plugin that the model was made with: name it in a `registry.toml`\n"
        )


def test_a_project_that_one_is_not_in(
    refused: Refused, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(project, GOOD)
    assert run(["build", "spec.toml", "-o", "out"]) == 0
    monkeypatch.chdir(project.parent)
    help_ = (
        f"= help: `{project}/registry.toml` registers it: work in its folder, or pass it as "
        "`--registry`, in Python as `registry=zoo.load_registry(...)`\n"
    )
    for command, source in (("validate", "spec.toml"), ("load", "out")):
        assert help_ in refused(command, f"{project.name}/{source}")
    (project / "registry.toml").write_text("broken")  # a hint must not raise a second error
    assert "registers it" not in refused("validate", f"{project.name}/spec.toml")


def test_a_plugin_file_without_a_line_in_the_registry(refused: Refused, project: Path) -> None:
    write_plugin(project, GOOD)
    (project / "plugins" / "mine.py").write_text(GOOD)
    (project / "registry.toml").write_text("format = 1\n")
    help_ = (
        f"= help: `plugins/mine.py` is there, but `{project}/registry.toml` does not name it: add "
        '`mine = "plugins/mine.py:'
    )
    for command in (("validate", "spec.toml"), ("plugin", "check", "ffn.mine")):
        told = refused(*command)
        assert help_ in told
        assert "` below `[ffn]`" in told
    (project / "plugins" / "mine.py").write_text("x = 1\n")  # none that describes a component
    assert "is there" not in refused("validate", "spec.toml")


def test_components_that_hold_their_like_are_read_fast(project: Path) -> None:
    """Reading a component examines the tables around it, but not more with each component
    between."""
    write_plugin(project, GOOD + "    inner: Annotated[FeedForward, Slot('ffn')]\n")

    def read(depth: int) -> int:
        nested = '{ kind = "mine", inner = ' * depth + '"mlp"' + " }" * depth
        return calls(lambda: zoo.read_spec(spec(f"ffn = {nested}")))

    read(1)  # fills the caches
    assert read(12) < 30 * read(4)


def test_a_type_that_is_defined_below_the_class(refused: Refused, project: Path) -> None:
    form = '    form: Form = "a"\n    d_inner: Shared[Width]\n'
    below = '\n\nfrom typing import Literal\n\nForm = Literal["a", "b"]\nWidth = Size\n'
    write_plugin(project, GOOD + form + below)
    text = (project / "spec.toml").read_text()
    (project / "spec.toml").write_text(f"d_inner = 3\n{text}")
    assert run(["validate", "spec.toml"]) == 0
    (project / "spec.toml").write_text(f"d_inner = 0\n{text}")
    assert "`d_inner` must be at least 1" in refused("validate", "spec.toml")
