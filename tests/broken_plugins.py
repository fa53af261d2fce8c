"""Components that break one promise each: a template of `zoo plugin new` with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Broken:
    """The replacements in the template of a slot, the checks that must fail, no others, and a part
    of the reason given by the first of them. `imports` is a further line at the top."""

    slot: str
    change: Mapping[str, str]
    failing: tuple[str, ...]
    reason: str
    imports: str = ""


# In the template of `ffn`:
UP = '"up_proj": linear(self.d_model, self.d_ff),'
FIELD = '    """The inner width."""\n'
TORCH = "    from torch import nn\n    from zoo.linear import Linear\n\n    class"
MADE = "self.down_proj = Linear(d_ff, d_model)"
RETURN = "output: torch.Tensor = self.down_proj(self.up_proj(x).relu())"
BUILT = "return module_class()(d_model=self.d_model, d_ff=self.d_ff)"
WITH_TORCH = {TORCH: f"    import torch\n{TORCH}"}
DROPS = {
    FIELD: FIELD + "    dropout: float = 0.0\n",
    BUILT: BUILT.replace("d_ff=self.d_ff", "d_ff=self.d_ff, dropout=self.dropout"),
    "d_ff: int) -> None": "d_ff: int, dropout: float) -> None",
    MADE: f"{MADE}\n            self.dropout = dropout",
}
"""A network that is given a share of dropout."""

# In the template of `head`:
N_CLASSES = """\
    n_classes: Size = 2
    \"\"\"How many numbers there are for each position.\"\"\"
"""

# In the template of `attention`:
RECORDABLE = """\
    recordable: ClassVar[bool] = True
    \"\"\"Whether a step of generation can be recorded as a CUDA graph.\"\"\"
"""
LOWEST = "torch.finfo(scores.dtype).min"
HIDE = "weights = weights.masked_fill(~mask, 0.0)"
MASKED = "if mask is not None:  #"
OUTPUT = "return output, weights if return_weights else None"

MIXED = "scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5"
QUERIES = "q = rotation(q)"
KEYS = "return (k if rotation is None else rotation(k)), v"
EXTENDED = "k, v = cache.extend(*make())"

DOWN = '"down_proj": linear(self.d_ff, self.d_model, residual=True),'
MIXES = """
    @property
    def incremental(self) -> bool:
        return False
"""
MASKS = """
    @property
    def takes_mask(self) -> bool:
        return True
"""
LOOKS_AHEAD = """
    @property
    def looks_ahead(self) -> bool:
        return True
"""


def reading(field: str) -> dict[str, str]:
    """A description that reads one of its fields."""
    return {"    def layout": f"    def own(self):\n        return self.{field}\n\n    def layout"}


MEAN = "x = x - 0.1 * x.mean(0, keepdim=True)"
MEAN_OF_VALUES = "v = v - 0.1 * v.mean(0, keepdim=True)"
"""The mean of a batch, which has no place in a module."""
TAKES_MASK = {"x: torch.Tensor)": "x: torch.Tensor, mask: torch.Tensor | None = None)"}

# In the template of `position`:
BIASES = {
    "embedded: ClassVar": "adds_bias: ClassVar",
    "def embed(self, x: torch.Tensor, positions: torch.Tensor)": "def bias(self, queries: "
    "torch.Tensor, keys: torch.Tensor, dtype: torch.dtype)",
}

# In the template of `embedding`:
DROPOUT = "    dropout: Shared[Probability] = 0.0\n"
IMAGES = """
    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 3, 4, 4

"""

LAYOUT = "from zoo.layout import Layout, linear"
CUT = {
    UP: UP.replace(")", ", cut=column_wise(self.d_ff))"),
    DOWN: DOWN.replace("True)", "True, cut=row_wise(self.d_ff))"),
    LAYOUT: "from zoo.layout import Cut, Layout, column_wise, linear, row_wise",
}
"""A network whose hidden units can be cut over processes, as its layout says."""

INCREMENTAL = """\
    @property
    def incremental(self) -> bool:
        \"\"\"Whether `forward` goes on from a `cache`.\"\"\"
        return True

"""

KNOWS_NO_CACHE = {
    INCREMENTAL: "",
    "            cache: AttentionCache | None = None,\n": "",
    "if cache is None:": "if True:",
}
"""An attention that does not declare or support caches."""

TIES = """\
    def ties(self, embedding):
        return {"out.weight": embedding}

"""

SCORES = """\
    @property
    def scores_tokens(self):
        return True

"""

GENERATES = {
    "    def ties(self)": """\
    @property
    def generation(self):
        return Generation(self.vocab)

    def ties(self)"""
}
"""A builder that declares that its model generates."""

POOLS = {
    "    n_classes: Size": "    pools: ClassVar[bool] = True\n    n_classes: Size",
    "x: torch.Tensor)": "x: torch.Tensor, mask: torch.Tensor | None = None)",
}
"""A head that declares that it returns one output for a whole sequence."""

SEQUENTIAL = """\
from torch import nn

        up, down = nn.Linear(self.d_model, self.d_ff), nn.Linear(self.d_ff, self.d_model)
        module = nn.Sequential()
        module.add_module("up_proj", up)
        module.add_module("down_proj", down)
        return module"""

DOUBLED = """
    @field_validator("d_ff", mode="before")
    @classmethod
    def _double(cls, value: int) -> int:
        return 2 * value
"""

NOT_DUMPED = """\
    scale: float = 1.0
    example = {"scale": 2.0}

    def dump(self):
        return {key: value for key, value in super().dump().items() if key != "scale"}
"""

NOISE = """
            self.register_buffer("noise", torch.empty(()), persistent=False)

        def reset_buffers(self, *, device):
            self.noise = torch.rand((), device=device)"""

COUNTS = """
        def reset_buffers(self, *, device):
            self.weight = self.weight + 1"""

SHARE = """\
if target_mask is not None:
                seen = target_mask.any().to(x.dtype)
                x = x * (seen / seen)"""


def before(*lines: str) -> dict[str, str]:
    """Insert lines before the body of a feed-forward module's `forward`."""
    return {RETURN: "\n            ".join([*lines, RETURN])}


def after(*lines: str) -> dict[str, str]:
    """Insert lines before the end of a feed-forward module's `forward`, which returns `output`."""
    return {RETURN: "\n            ".join([RETURN, *lines])}


BROKEN: Mapping[str, Broken] = {
    # imports
    "imports_torch": Broken("ffn", {}, ("imports",), "do it inside `build`", "import torch"),
    "imports_torch_where_it_is": Broken(  # as transformers does
        "ffn",
        {},
        ("imports",),
        "do it inside `build`",
        "from contextlib import suppress\nfrom importlib.util import find_spec\n\n"
        "if find_spec('torch'):\n    with suppress(ImportError):\n        import torch\n",
    ),
    "torch_for_checkers_alone": Broken(
        "ffn",
        {"self.up_proj(x).relu()": "torch.relu(self.up_proj(x))"},
        ("interface",),
        "help: import `torch` in the function too that holds this code",
    ),
    "evaluates_types": Broken(
        "ffn",
        {"from __future__ import annotations\n": ""},
        ("imports",),
        "help: begin the file with `from __future__ import annotations`",
    ),
    "no_python": Broken("ffn", {"class NoPython": "clas NoPython"}, ("imports",), "SyntaxError"),
    "leaves": Broken("ffn", {"@cache": "raise SystemExit(3)"}, ("imports",), "SystemExit: 3"),
    "ends_the_process": Broken(
        "ffn",
        {"@cache": "os._exit(7)"},
        ("imports",),
        "ends the process, with status 7",
        "import os",
    ),
    "prints": Broken(
        "ffn",
        {"        return Layout(": "        print('hello')\n        return Layout("},
        ("layout",),
        "it prints, into the output of commands",
    ),
    "other_slot": Broken(
        "ffn", {"(FeedForward)": "(Init)"}, ("imports",), "slot", "from zoo.slots import Init"
    ),
    "has_init": Broken(
        "ffn",
        {
            FIELD: FIELD
            + "\n    def __init__(self, **values):\n        super().__init__(**values)\n"
        },
        ("imports",),
        "the description HasInit has an `__init__`",
    ),
    "method_for_a_property": Broken(
        "attention",
        {"    @property\n    def incremental": "    def incremental"},
        ("imports",),
        "`incremental` of MethodForAProperty is a method, and a property of Attention: write",
    ),
    "has_alias": Broken(
        "ffn",
        {FIELD: FIELD + '    ratio: float = Field(1.0, alias="share")\n'},
        ("imports",),
        "the field `ratio` of HasAlias has an alias",
        "from pydantic import Field",
    ),
    # schema
    "no_type": Broken(
        "ffn",
        {FIELD: FIELD + "    ratio: Shared\n"},
        ("schema",),
        "`ratio` has no type\nhelp: such as `Shared[Size]`",
        "from zoo.component import Shared",
    ),
    "own_d_model": Broken(
        "ffn",
        {FIELD: FIELD + "    d_model: Size = 8\n"},
        ("imports",),
        "`d_model` of OwnDModel goes over a dimension that the parent gives",
    ),
    "own_norms": Broken(
        "ffn",
        {FIELD: FIELD + "    norms: Size = 8\n"},
        ("imports",),
        "`norms` of OwnNorms goes over a field, which FeedForward states",
    ),
    "unknown_type": Broken(
        "ffn",
        {"import Shared, Size": "import Shared"},
        ("imports",),
        "names `Size`, which is not defined\nhelp: import it at the top",
    ),
    "bad_default": Broken(
        "ffn",
        {FIELD: FIELD + "    ratio: Size = 0\n"},
        ("schema",),
        "the default of `ratio` must be at least 1, not the integer `0`",
    ),
    "no_default": Broken(
        "ffn",
        {FIELD: FIELD + "    ratio: Size = None\n"},
        ("schema",),
        "the default of `ratio` must be an integer, not `None`",
    ),
    "untold_type": Broken(
        "ffn",
        {FIELD: FIELD + "    inner: Callable[[int], int] = abs\n"},
        ("schema",),
        "`inner` has no JSON Schema",
        "from collections.abc import Callable",
    ),
    "enum": Broken(
        "ffn",
        {
            FIELD: FIELD + "    form: Form | None = None\n",
            "\n\nclass Enum(": "\n\nclass Form(enum.Enum):\n    A = 'a'\n    B = 'b'\n\n\n"
            "class Enum(",
        },
        ("schema",),
        "help: a choice is a `Literal['a', 'b']`",
        "import enum",
    ),
    "table": Broken(
        "ffn",
        {
            FIELD: FIELD + "    inner: Inner = Inner()\n",
            "\n\nclass Table(": "\n\nclass Inner(BaseModel):\n    a: int = 1\n\n\nclass Table(",
        },
        ("schema",),
        "the type of `inner` holds Inner, which is no component",
        "from pydantic import BaseModel",
    ),
    "tables": Broken(
        "ffn",
        {
            FIELD: FIELD + "    inner: tuple[Inner, ...] = ()\n",
            "\n\nclass Tables(": "\n\n@dataclass\nclass Inner:\n    a: int = 1\n\n\nclass Tables(",
        },
        ("schema",),
        "help: derive Inner from `zoo.component.Component`, and write `inner: ",
        "from dataclasses import dataclass",
    ),
    "tuple_of_anything": Broken(
        "ffn",
        {FIELD: FIELD + "    pool: tuple = (2, 2)\n"},
        ("schema",),
        "the type of `pool` is a tuple of anything",
    ),
    "anything": Broken(
        "ffn",
        {FIELD: FIELD + "    inner: tuple[Any, ...] = ()\n"},
        ("schema",),
        "the type of `inner` takes anything",
        "from typing import Any",
    ),
    # example
    "no_guess": Broken(
        "ffn",
        {FIELD: FIELD + "    words: tuple[str, ...]\n", **reading("words")},
        ("example",),
        "in the description's `example`",
    ),
    "misspelt_example": Broken(
        "ffn",
        {FIELD: FIELD + '    example = {"d_fff": 3}\n'},
        ("example",),
        "unknown key `d_fff` in `part`\nhelp: did you mean `d_ff`?",
    ),
    "bad_guess": Broken(
        "ffn",
        {FIELD: FIELD + "    ratio: float = Field(gt=3.0)\n", **reading("ratio")},
        ("example",),
        "greater than 3",
        "from pydantic import Field",
    ),
    "given_by_no_parent": Broken(  # of a network: a position scheme is given it
        "ffn",
        {FIELD: FIELD + "    n_heads: Given[int]\n"},
        ("example",),
        "needs the dimension `n_heads`, which its parent does not give",
        "from zoo.component import Given",
    ),
    "holds_itself": Broken(
        "ffn",
        {
            FIELD: FIELD + "    inner: Annotated[FeedForward, "
            "Slot('ffn', default='holds_itself', inherit=False)]\n",
            **reading("inner"),
        },
        ("example",),
        "components are nested more than 32 deep",
        "from typing import Annotated\nfrom zoo.component import Slot",
    ),
    "holds_itself_by_what_is_stated": Broken(
        "ffn",
        {
            FIELD: FIELD + "    inner: Annotated[FeedForward, Slot('ffn')]\n",
            **reading("inner"),
        },
        ("example",),
        "its field `inner` takes what is stated for `ffn` around it, and so the component itself",
        "from typing import Annotated\nfrom zoo.component import Slot",
    ),
    # meta
    "build_raises": Broken("ffn", {MADE: "raise OSError('no')"}, ("meta",), "OSError: no"),
    "own_device": Broken(
        "ffn",
        {MADE: MADE[:-1] + ", device='cpu')"},
        ("meta",),
        "`part.down_proj.weight` is built on cpu",
    ),
    "no_super": Broken(
        "ffn",
        {"            super().__init__()\n": ""},
        ("meta",),
        "help: `__init__` of a module begins with `super().__init__()`",
    ),
    "reads_values": Broken(
        "ffn",
        {MADE: f"{MADE}\n            self.start = torch.ones(1).item()", **WITH_TORCH},
        ("meta",),
        "help: models are built, and their operations are counted, with tensors that have no",
    ),
    "built_nothing": Broken(
        "ffn",
        {BUILT: BUILT.removeprefix("return ")},
        ("meta",),
        "`build` of ffn.built_nothing (BuiltNothing) returned None, and not a torch.nn.Module",
    ),
    "built_a_class": Broken(
        "ffn", {BUILT: "return module_class()"}, ("meta",), "returned the class `Module`, and not"
    ),
    "build_missing": Broken(
        "ffn",
        {"def build(self)": "def make(self)"},
        ("meta",),
        "(BuildMissing) has no method `build`",
    ),
    "list_of_modules": Broken(
        "ffn",
        {MADE: f"{MADE}\n            self.more = [nn.Linear(d_model, d_model)]"},
        ("meta",),
        "`part.more` holds modules that torch knows nothing of",
    ),
    "dict_of_modules": Broken(
        "ffn",
        {MADE: f"{MADE}\n            self.more = {{'a': nn.Linear(d_model, d_model)}}"},
        ("meta",),
        "`part.more` holds modules that torch knows nothing of",
    ),
    "bare_tensor": Broken(
        "ffn",
        {MADE: MADE + "\n            self.table = torch.arange(3.0)", **WITH_TORCH},
        ("meta",),
        "`part.table` is a tensor (3,) and neither a parameter nor a buffer",
    ),
    "list_of_tensors": Broken(
        "ffn",
        {
            MADE: f"{MADE}\n            self.factors = [nn.Parameter(torch.ones(d_model))]",
            **before("x = x * self.factors[0]"),
            **WITH_TORCH,
        },
        ("meta",),
        "`part.factors` holds tensors that torch knows nothing of",
    ),
    # layout
    "bias_untold": Broken(
        "ffn", {UP: UP.replace(")", ", bias=False)")}, ("layout",), "`part.up_proj.bias`"
    ),
    "other_shape": Broken("ffn", {UP: UP.replace("d_ff", "d_model")}, ("layout",), "[16, 16]"),
    "other_name": Broken("ffn", {UP: UP.replace("up", "in")}, ("layout",), "`part.in_proj"),
    "padding_that_never_learns": Broken(
        "embedding",
        {"nn.Embedding(vocab, d_model)": "nn.Embedding(vocab, d_model, padding_idx=0)"},
        ("layout",),
        "`part.tokens` has `padding_idx=0`: the vector of this id never learns",
    ),
    "sparse_table": Broken(
        "embedding",
        {"nn.Embedding(vocab, d_model)": "nn.Embedding(vocab, d_model, sparse=True)"},
        ("layout",),
        "`part.tokens` has `sparse=True`, and training takes dense gradients alone",
    ),
    "one_block_for_all": Broken(
        "builder",
        {"[self.block.build() for _ in range(self.n_layers)]": "[self.block.build()] * 2"},
        ("layout",),
        "`layers.1.ffn.down_proj.bias` is tied to layers.0.ffn.down_proj.bias in the module",
    ),
    "buffer_untold": Broken(
        "norm", {"nn.Parameter(": "nn.Buffer("}, ("layout",), "`part.weight` is a float buffer"
    ),
    "tables_uncounted": Broken(
        "ffn",
        {
            MADE: MADE + "\n            self.register_buffer('t', torch.ones(3), persistent=False)",
            **WITH_TORCH,
        },
        ("layout",),
        "not stored (part.t) have 3 elements, and `computed` of the layout says 0",
    ),
    "no_tables_counted": Broken(
        "ffn",
        {"return Layout(": "return Layout(computed=1, parts="},
        ("layout",),
        "not stored (none) have 0 elements, and `computed` of the layout says 1",
    ),
    "starts_itself": Broken(
        "ffn",
        {MADE: f"{MADE}\n            nn.init.zeros_(self.down_proj.weight)"},
        ("layout",),
        "sets all of `part.down_proj.weight` to 0, which has no effect: it starts as the layout "
        "says, by its role (residual)",
    ),
    "draws_itself": Broken(
        "ffn",
        {MADE: f"{MADE}\n            nn.init.normal_(self.down_proj.weight, std=0.02)"},
        ("layout",),
        "the module draws `part.down_proj.weight` at random itself, which has no effect: it starts "
        "as the layout says, by its role (residual)",
    ),
    "starts_elsewhere": Broken(
        "norm",
        {"torch.ones(width)": "torch.full((width,), 0.5)"},
        ("layout",),
        "sets all of `part.weight` to 0.5, which has no effect: it starts as the layout says, by "
        "its role (constant, 1)",
    ),
    # interface
    "own_call": Broken(
        "norm",
        {"    return Module\n": "    Module.__call__ = Module.forward\n    return Module\n"},
        ("interface",),
        "the module has a `__call__` of its own",
    ),
    "other_width": Broken(
        "ffn", {RETURN: RETURN + "[..., :3]"}, ("interface",), "(2, 6, 16), not (2, 6, 3)"
    ),
    "no_tensor": Broken("ffn", {RETURN: RETURN + ", None"}, ("interface",), "not tuple"),
    "returns_nothing": Broken(
        "ffn",
        {"            return output\n": ""},
        ("interface",),
        "must be a tensor (2, 6, 16), not NoneType\nhelp: end `forward` with",
    ),
    "table_without_values": Broken(  # those of `__init__` are gone
        "ffn",
        {
            MADE: f"{MADE}\n            self.register_buffer('t', torch.ones(3), persistent=False)",
            **WITH_TORCH,
            "residual=True),\n            }": "residual=True),\n            }, computed=3",
        },
        ("interface",),
        "compute it in `def reset_buffers(self, *, device)`, on that device",
    ),
    "call_raises": Broken("ffn", before("raise KeyError(x)"), ("interface",), "KeyError"),
    "no_mask": Broken(
        "ffn",
        {FIELD: FIELD + MASKS},
        ("interface",),
        "unexpected keyword argument 'mask'",
    ),
    "sequential": Broken("ffn", {BUILT: SEQUENTIAL}, ("interface",), "bare Sequential"),
    "own_norm": Broken(
        "ffn",
        {
            UP: f'"post_norm": linear(self.d_ff, self.d_ff),\n                {UP}',
            MADE: f"self.post_norm = nn.Linear(d_ff, d_ff)\n            {MADE}",
            RETURN: RETURN.replace("self.up_proj(x)", "self.post_norm(self.up_proj(x))"),
        },
        ("interface",),
        "the module has a `post_norm` of its own",
    ),
    "remembers_in_its_class": Broken(  # what later models would read
        "ffn",
        {
            "        def __init__(": "        memo: dict = {}\n\n        def __init__(",
            **before("x = x * Module.memo.setdefault(x.shape, self.up_proj.weight.sum())"),
        },
        ("interface",),
        "a call changes `Module.memo`, which other models in this process share",
    ),
    "counts_in_its_file": Broken(
        "ffn",
        {"@cache": "CALLS = [0]\n\n\n@cache", **before("CALLS[0] += 1")},
        ("interface",),
        "a call changes `CALLS`, which other models in this process share",
    ),
    "weights_matter": Broken(
        "attention",
        {OUTPUT: OUTPUT.replace("output,", "output * (1 + return_weights),")},
        ("interface",),
        "the output is another when `return_weights` is set",
    ),
    "random_attention": Broken(
        "attention",
        {OUTPUT: "output = output + torch.rand_like(output)\n            " + OUTPUT},
        ("determinism",),
        "a second call with the same input gives another output",
    ),
    "weights_unasked": Broken(
        "attention", {OUTPUT: "return output, weights"}, ("interface",), "is not set"
    ),
    "weights_not_returned": Broken(
        "attention", {OUTPUT: "return output"}, ("interface",), "as a tuple, not Tensor"
    ),
    "weights_of_no_head": Broken(
        "attention",
        {OUTPUT: OUTPUT.replace("weights if", "weights.mean(-3) if")},
        ("interface",),
        "the weights (batch, heads, query, key) must be (2, any, 6, any), not (2, 6, 6)",
    ),
    "attention_with_own_norms": Broken(
        "attention",
        {"self.n_heads = n_heads": "self.n_heads = n_heads\n            self.pre_norm = None"},
        ("interface",),
        "the module has a `pre_norm` of its own",
    ),
    "block_maps_not_returned": Broken(
        "block",
        {'return x, {} if weights is None else {"self_attn": weights}': "return x"},
        ("interface",),
        "as a tuple, not Tensor",
    ),
    "keys_not_offered": Broken(
        "attention",
        {
            INCREMENTAL: INCREMENTAL
            + """\
    @property
    def offers_keys(self):
        from zoo.slots import KeyForm

        return KeyForm(self.n_heads, self.head_dim, self.head_dim)

""",
            "positions: torch.Tensor | None = None,": (
                "positions: torch.Tensor | None = None, keys=None,"
            ),
        },
        ("interface",),
        "no keys and values are put into `keys`",
    ),
    "keys_not_needed": Broken(
        "attention",
        {
            INCREMENTAL: "    @property\n    def needs_keys(self) -> KeyForm:\n"
            f"        return KeyForm(1, self.head_dim, self.head_dim)\n\n{INCREMENTAL}",
            "return_weights: bool = False,\n": "return_weights: bool = False,\n"
            "            keys: object = None,\n",
        },
        ("interface",),
        "the keys and values of an earlier layer change nothing, although `needs_keys` says",
        "from zoo.slots import KeyForm",
    ),
    "choice_not_offered": Broken(
        "attention",
        {
            INCREMENTAL: "    @property\n    def offers_keys(self) -> str:\n"
            f'        return "chosen"\n\n{INCREMENTAL}',
            "positions: torch.Tensor | None = None,": (
                "positions: torch.Tensor | None = None, keys=None,"
            ),
        },
        ("interface",),
        "no choice of keys is put into `keys`",
    ),
    "choice_not_needed": Broken(
        "attention",
        {
            INCREMENTAL: "    @property\n    def needs_keys(self) -> str:\n"
            f'        return "chosen"\n\n{INCREMENTAL}',
            "return_weights: bool = False,\n": "return_weights: bool = False,\n"
            "            keys: object = None,\n",
        },
        ("interface",),
        "the chosen keys of an earlier layer change nothing, although `needs_keys` says",
    ),
    "coordinates_not_taken": Broken(
        "attention",
        {INCREMENTAL: INCREMENTAL + "    @property\n    def axes(self):\n        return 2\n\n"},
        ("interface",),
        "`forward` cannot be called as its slot says: got an unexpected keyword argument 'coor",
    ),
    "positions_not_taken": Broken(
        "attention",
        {"positions: torch.Tensor | None = None,": ""},
        ("interface",),
        "`forward` cannot be called as its slot says: got an unexpected keyword argument 'posit",
    ),
    "memory_of_other_width": Broken(
        "attention",
        {"key_width=self.key_width or self.d_model": "key_width=self.d_model"},
        ("layout",),
        "over a memory: check-attention-memory_of_other_width: a plugin's `layout` is not",
    ),
    "block_passes_on_no_scheme": Broken(
        "block",
        {"{name: getattr(context, name) for name in self.takes}": "{}"},
        ("interface",),
        "an attention inside that takes `scheme` is called without",
    ),
    "block_passes_on_no_positions": Broken(
        "block",
        {"                positions=context.positions,\n": ""},
        ("interface",),
        "an attention inside is called without positions",
    ),
    "block_passes_on_no_ids": Broken(
        "block",
        {', "ids": context.ids}': ', "ids": None}'},
        ("interface",),
        "with `ffn` that reads the ids of tokens, these are not passed on",
    ),
    "block_is_silent_about_ids": Broken(
        "block",
        {"        return self.ffn.takes_ids": "        return False"},
        ("interface",),
        "with `ffn` that reads the ids of tokens, `takes_ids` is False",
    ),
    "block_asks_for_no_weights": Broken(
        "block",
        {"                return_weights=context.return_weights,\n": ""},
        ("interface",),
        "an attention inside that takes `return_weights` is called without",
    ),
    "block_passes_on_no_keys": Broken(
        "block",
        {"if context.keys is not None": "if False"},
        ("interface",),
        "an attention inside that takes `keys` is called without",
    ),
    "model_without_positions": Broken(
        "builder",
        {"                positions=positions,\n": ""},
        ("interface",),
        "an attention inside is called without positions",
    ),
    "block_weights_unasked": Broken(
        "block", {"{} if weights is None else ": ""}, ("interface",), "is not set"
    ),
    "maps_matter": Broken(
        "builder",
        {"output = self.head(x)": "output = self.head(x * (1 + return_attention))"},
        ("interface",),
        "the output is another when `return_attention` is set",
    ),
    "no_maps": Broken(
        "builder",
        {
            "return (output, AttentionMaps(decoder=tuple(maps))) if return_attention else output": (
                "return output"
            )
        },
        ("interface",),
        "its output and a `zoo.transformer.AttentionMaps`, not Tensor",
    ),
    "two_outputs": Broken(
        "builder",
        {"output = self.head(x)": "output = self.head(x), x"},
        ("interface",),
        "a model returns one tensor, not tuple",
    ),
    "no_output": Broken(
        "builder",
        {"if return_attention else output": "if return_attention else None"},
        ("interface",),
        "the output must be a tensor (2, any, any), not NoneType\nhelp: end `forward` with",
    ),
    "small_table": Broken(
        "builder",
        {
            "    def ties(self)": GENERATES["    def ties(self)"]
            .replace("generation", "reading")
            .replace("Generation(self.vocab", "Reading(self.vocab + 3"),
        },
        ("interface",),
        "by the description, the ids of `target` are below 14",
        "from zoo.purpose import Reading",
    ),
    "skips": Broken(
        "ffn",
        {"= self.down_proj(": "= x + self.down_proj("},
        ("interface",),
        "the output holds x itself, which the block adds",
    ),
    "attention_skips": Broken(
        "attention",
        {"output = self.o_proj(": "output = x + self.o_proj("},
        ("interface",),
        "the output holds x itself, which the block adds",
    ),
    "narrow_embedding": Broken(
        "embedding",
        {"= self.dropout(x)": "= self.dropout(x)[..., :3]"},
        ("interface",),
        "the output must be (2, 6, 16), not (2, 6, 3)",
    ),
    "token_types_ignored": Broken(
        "embedding",
        {
            "    def layout": "    @property\n    def token_types(self):\n        return 2\n\n"
            "    def layout"
        },
        ("interface",),
        "the vectors are the same for all token types, of which",
    ),
    "more_classes_than_outputs": Broken(
        "head",
        {
            "    def layout": "    @property\n    def classes(self):\n"
            "        return Classes(self.n_classes + 1)\n\n    def layout"
        },
        ("interface",),
        "the output is 2 wide, and by the description's `classes` there are 3",
        "from zoo.purpose import Classes",
    ),
    "no_positions": Broken(
        "embedding",
        {"x = self.positions.embed(x, positions)": "pass"},
        ("interface",),
        "the position scheme that `build` receives is not applied",
    ),
    "images_of_no_number": Broken(
        "embedding",
        {DROPOUT: IMAGES + DROPOUT},
        ("interface",),
        "the description states an `image_shape`, and no `n_vectors`",
    ),
    "position_of_model_width": Broken(
        "position",
        {
            "self.max_length, self.width": "self.max_length, self.d_model",
            "=self.width": "=self.d_model",
        },
        ("interface",),
        "The size of tensor a (10) must match the size of tensor b (16)",
    ),
    "narrow_position": Broken(
        "position",
        {"x + self.weight[positions]": "(x + self.weight[positions])[..., :3]"},
        ("interface",),
        "what `embed` returns must be (2, 6, 10), not (2, 6, 3)",
    ),
    "no_scheme": Broken(
        "position",
        {"class Module(PositionScheme)": "class Module(nn.Module)"},
        ("meta",),
        "returned `Module()`, a Module, and not a zoo.position.PositionScheme",
    ),
    "position_of_no_method": Broken(
        "position", {"def embed(": "def embeds("}, ("interface",), "defines none of embed"
    ),
    "position_of_all": Broken(
        "position",
        {"self.weight[positions]": "self.weight[positions.clamp(0, 0)]"},
        ("interface",),
        "the results are the same at other positions, which nothing then tells apart",
    ),
    "position_not_embedded": Broken(
        "position",
        {"ClassVar[bool] = True": "ClassVar[bool] = False"},
        ("interface",),
        "the module defines `embed`, and the description says `embedded = False`",
    ),
    "position_not_rotating": Broken(
        "position",
        {"    max_length: Shared": "    rotates: ClassVar[bool] = True\n    max_length: Shared"},
        ("interface",),
        "the module does not define `rotation`, and the description says `rotates = True`",
    ),
    "position_not_biasing": Broken(
        "position",
        {"    max_length: Shared": "    adds_bias: ClassVar[bool] = True\n    max_length: Shared"},
        ("interface",),
        "the module does not define `bias`, and the description says `adds_bias = True`",
    ),
    "embedding_of_unstated_axes": Broken(
        "embedding",
        {"    def layout": "    axes = property(lambda self: 2)\n\n    def layout"},
        ("interface",),
        "the module has `axes = 1`, and the description says `axes = 2`",
    ),
    "position_of_unstated_axes": Broken(
        "position",
        {"    max_length: Shared": "    axes: ClassVar[int] = 2\n    max_length: Shared"},
        ("interface",),
        "the module has `axes = 1`, and the description says `axes = 2`",
    ),
    "position_of_first_row": Broken(
        "position",
        {"self.weight[positions]": "self.weight[positions.flatten()[: x.shape[-2]]]"},
        ("interface",),
        "`embed` gives another result for positions (batch, length)",
    ),
    "position_bias_of_no_dtype": Broken(
        "position",
        {**BIASES, ", dtype: torch.dtype)": ")"},
        ("interface",),
        "`bias` cannot be called as its slot says: too many positional arguments",
    ),
    "position_bias_of_one_row": Broken(  # by the first dimension of positions, as if it were length
        "position",
        {
            **BIASES,
            "return x + self.weight[positions]": "far = (queries[:, None] - keys[None, :]).abs()\n"
            "            return -far.to(dtype) * self.weight.sum((0, 1)).expand(2, 1, 1)",
        },
        ("interface",),
        "what `bias` returns for positions (batch, length) must be (2, 2, 6, 6), not (2, 2, 6)",
    ),
    "position_bias_of_first_row": Broken(  # as a flipped row, whose distances are the same
        "position",
        {
            **BIASES,
            "return x + self.weight[positions]": "rows = [p.reshape(-1, p.shape[-1])[0] for p in "
            "(queries, keys)]\n"
            "            far = (rows[0][:, None] - rows[1]).abs().to(dtype)\n"
            "            return (-far * self.weight.sum()).expand(2, *far.shape)",
        },
        ("interface",),
        "`bias` gives another result for positions (batch, length) than for those of each row",
    ),
    "position_by_place": Broken(
        "position",
        {"self.weight[positions]": "self.weight[: x.shape[-2]]"},
        ("interface",),
        "`embed` gives another result for the last token alone",
    ),
    "position_of_how_many": Broken(  # without `changes`
        "position",
        {"self.weight[positions]": "self.weight[positions] * positions.amax(-1)[..., None, None]"},
        ("interface",),
        "`embed` gives another result for the first 1 tokens alone than for all 6",
    ),
    "position_of_no_padding": Broken(
        "position",
        {"self.weight[positions]": "self.weight[positions] * (positions[..., None] + 1.0).log()"},
        ("interface",),
        "`embed` is not finite for the position -1",
    ),
    "position_without_end": Broken(
        "position",
        {"return self.max_length": "return None"},
        ("interface",),
        "a call with position 99999 failed: IndexError",
    ),
    "position_of_near_keys": Broken(  # by a table of distances
        "position",
        {
            **BIASES,
            "return x + self.weight[positions]": "far = (queries[..., None] - keys[..., None, :])"
            ".abs()\n"
            "            return self.weight[far, :2].movedim(-1, -3)",
            "return self.max_length": "return None",
        },
        ("interface",),
        "a call with position 99999 failed: IndexError",
    ),
    "position_past_the_end": Broken(
        "position",
        {"return self.max_length": "return self.max_length + 1"},
        ("interface",),
        "a call with position 16 failed: IndexError",
    ),
    "ties_nothing": Broken(
        "head",
        {"    def layout(self)": TIES.replace("out.", "in.") + "    def layout(self)"},
        ("interface",),
        "`ties` names the tensor `in.weight`, which is not in the layout",
    ),
    "ties_other_shape": Broken(
        "head",
        {"    def layout(self)": TIES + "    def layout(self)"},
        ("interface",),
        "`out.weight`, which is (2, 16) in the layout; the token table that it is tied to is (11,",
    ),
    "ties_a_list": Broken(
        "head",
        {
            "    def layout(self)": TIES.replace("{", "[").replace(": embedding}", "]")
            + "    def layout(self)"
        },
        ("interface",),
        "`ties` must return a mapping, not list",
    ),
    "pools_and_does_not": Broken(
        "head",
        POOLS,
        ("interface",),
        "the output, one for each sequence, must be (2, any), not (2, 6, 2)",
        "from typing import ClassVar",
    ),
    "scores_classes": Broken(
        "head",
        {"    def layout(self)": SCORES + "    def layout(self)"},
        ("interface",),
        "the output must be (2, 6, 11), not (2, 6, 2)",
    ),
    "scores_unsaid": Broken(
        "head",
        {
            "linear(self.d_model, self.n_classes)": "linear(self.d_model, self.vocab)",
            "n_classes=self.n_classes": "n_classes=self.vocab",
            N_CLASSES: "",
        },
        ("interface",),
        "the output is as wide as the vocabulary, and the description does not say",
    ),
    "unbatched_head": Broken(
        "head", {"self.out(x)": "self.out(x)[0]"}, ("interface",), "must be (2, 6, any), not (6, 2)"
    ),
    # determinism
    "start_by_inputs": Broken(
        "init",
        {
            'Constant(0.0) if tensor.role == "bias" else Uniform(self.bound)': (
                "Uniform(self.bound / tensor.fan_in)"
            )
        },
        ("determinism",),
        "ZeroDivisionError",
    ),
    "random_start": Broken(
        "init",
        {"Uniform(self.bound)": "Uniform(self.bound * random())"},
        ("determinism",),
        "has other values in a second build",
        "from random import random",
    ),
    "start_by_hash": Broken(
        "init",
        {"Uniform(self.bound)": "Uniform(self.bound * (1 + hash(tensor.name) % 1000))"},
        ("determinism",),
        "in another process `tokens.weight` stands there and starts from Uniform(bound=",
    ),
    "output_by_hash": Broken(
        "ffn",
        {
            MADE: f"{MADE}\n            self.salt = hash('salt') % 1000",
            RETURN: RETURN.replace("(x)", "(x + self.salt)"),
        },
        ("determinism",),
        "the output is another in another process\nhelp: `hash` of a text",
    ),
    "random_table": Broken(
        "ffn",
        {
            MADE: MADE + NOISE,
            RETURN: RETURN + " + self.noise",
            "return Layout(": "return Layout(computed=1, parts=",
            **WITH_TORCH,
        },
        ("determinism",),
        "`part.noise` has other values",
    ),
    "counts_calls": Broken(
        "ffn",
        before("self.n = getattr(self, 'n', 0) + 1", "x = x * self.n"),
        ("determinism",),
        "a call leaves another `part.n` behind",
    ),
    "counts_in_a_list": Broken(
        "ffn",
        {MADE: f"{MADE}\n            self.seen = []", **before("self.seen.append(x.shape)")},
        ("determinism",),
        "a call leaves another `part.seen` behind",
    ),
    "auxiliary_loss_of_any_call": Broken(
        "ffn",
        {
            MADE: f"{MADE}\n            self.auxiliary_loss = None",
            **after("self.auxiliary_loss = output.mean()"),
        },
        ("determinism",),
        "since several generations may use it at once\nhelp: `__init__` sets it to None, and `for",
    ),
    "counts_in_a_buffer": Broken(
        "ffn",
        {
            MADE: MADE + NOISE.replace("rand", "zeros"),
            **before("self.noise.add_(1)"),
            "return Layout(": "return Layout(computed=1, parts=",
            **WITH_TORCH,
        },
        ("determinism",),
        "a call leaves another `part.noise` behind",
    ),
    "noisy": Broken(
        "ffn",
        before("x = nn.functional.dropout(x, 0.5)"),
        ("determinism",),
        "a second call with the same input gives another output",
    ),
    "in_place": Broken(
        "ffn",
        before("x.mul_(2)"),
        ("determinism",),
        "a call changes its input, which others read too\nhelp: compute new values",
    ),
    "counts_in_a_list_of_one": Broken(
        "ffn",
        {MADE: f"{MADE}\n            self.calls = [0]", **before("self.calls[0] += 1")},
        ("determinism",),
        "a call leaves another `part.calls` behind",
    ),
    # rows
    "mixes_rows": Broken("ffn", before(MEAN), ("rows",), "another output than alone"),
    "views": Broken(
        "ffn",
        {RETURN: RETURN.replace("(x)", "(x.view(-1, x.shape[-1]))") + ".view(x.shape)"},
        ("rows",),
        "a call with a part of another tensor failed: RuntimeError: view size is not compatible",
    ),
    "squeezes_a_batch_of_one": Broken(
        "ffn",
        before("x = x.squeeze()"),
        ("rows",),
        "in a call, a row alone gives (6, 16), and each of 2 rows (1, 6, 16)",
    ),
    "mixes_rows_when_causal": Broken(
        "attention",
        {"            if causal:\n": f"            if causal:\n                {MEAN_OF_VALUES}\n"},
        ("rows",),
        "in a call with `causal`, a row of the batch has another output than alone",
    ),
    "memory_ignored": Broken(
        "attention",
        {"else memory": "else 0 * memory"},
        ("interface",),
        "over a memory: the memory changes nothing",
    ),
    "mixes_rows_of_a_memory": Broken(
        "attention",
        {MIXED: f"if memory is not None:\n                {MEAN_OF_VALUES}\n            {MIXED}"},
        ("rows",),
        "over a memory: in a call, a row of the batch",
    ),
    "embedding_mixes_rows": Broken(
        "embedding",
        {"= self.tokens(ids)": f"= self.tokens(ids)\n            {MEAN}"},
        ("rows",),
        "another output than alone",
    ),
    "head_mixes_rows": Broken(
        "head",
        {
            **POOLS,
            "self.out(x)": "self.out(x[:, 0] - x[:, 0].mean(0))",
        },
        ("rows",),
        "another output than alone",
        "from typing import ClassVar",
    ),
    "model_mixes_rows": Broken(
        "builder",
        {"output = self.head(x)": f"{MEAN}\n            output = self.head(x)"},
        ("rows",),
        "another output than alone",
    ),
    "starts_by_columns": Broken(  # as if each tensor that is no bias were a matrix
        "init",
        {"Uniform(self.bound)": "Uniform(self.bound / tensor.shape[1])"},
        ("determinism",),
        "for `query` [16], failed: IndexError: tuple index out of range",
    ),
    "starts_from_a_number": Broken(
        "init",
        {"Constant(0.0) if": "0.0 if"},
        ("determinism",),
        "starts from 0.0, which is not a distribution: return one of zoo.distribution",
    ),
    # saving
    "keeps_a_lambda": Broken(
        "ffn",
        {
            MADE: f"{MADE}\n            self.up = lambda x: self.up_proj(x).relu()",
            RETURN: RETURN.replace("self.up_proj(x).relu()", "self.up(x)"),
        },
        ("saving",),
        "a copy of the model by `copy.deepcopy` computes with tensors of the model",
    ),
    "doubles": Broken(
        "ffn",
        {FIELD: FIELD + DOUBLED},
        ("saving",),
        "is another spec",
        "from pydantic import field_validator",
    ),
    "draws_a_number": Broken(
        "ffn",
        {
            **WITH_TORCH,
            MADE: f"{MADE}\n            self.scale = float(torch.rand(1, device='cpu'))",
            RETURN: RETURN.replace("self.down", "self.scale * self.down"),
        },
        ("saving", "precision"),
        "help: what decides it is a field or a tensor; `build` draws nothing at random",
    ),
    "not_dumped": Broken(
        "ffn",
        {
            FIELD: FIELD + NOT_DUMPED,
            BUILT: BUILT[:-1] + ", scale=self.scale)",
            "d_ff: int)": "d_ff: int, scale: float)",
            MADE: MADE + "\n            self.scale = scale",
            RETURN: RETURN + " * self.scale",
        },
        ("saving",),
        "the model that is loaded again has another output",
    ),
    "counts_loads": Broken(
        "norm",
        {
            "vector(self.width, value=1.0)": "replace(vector(self.width, value=1.0), buffer=True)",
            "nn.Parameter(torch.ones(width))": "nn.Buffer(torch.ones(width))",
            "self.eps = eps": f"self.eps = eps\n{COUNTS}",
        },
        ("saving",),
        "`part.weight` has other values when it is loaded again",
        "from dataclasses import replace",
    ),
    # modes
    "louder_in_training": Broken(
        "ffn", before("x = 2 * x if self.training else x"), ("modes",), "without dropout (largest"
    ),
    "learns_what_is_not_stored": Broken(
        "ffn",
        {
            MADE: MADE
            + '\n            self.register_buffer("mean", torch.empty(()), persistent=False)'
            "\n\n        def reset_buffers(self, *, device):"
            "\n            self.mean = torch.zeros((), dtype=self.mean.dtype, device=device)",
            **before("if self.training:", "    self.mean = self.mean + x.detach().mean()"),
            **WITH_TORCH,
            "residual=True),\n            }": "residual=True),\n            }, computed=1",
        },
        ("modes",),
        "a call in training changes `part.mean`, which is not stored",
    ),
    "drops_in_evaluation": Broken(
        "ffn",
        {
            **DROPS,
            RETURN: f"{RETURN}\n            output = nn.functional.dropout(output, self.dropout)",
        },
        ("modes",),
        "the output is another in evaluation, with `dropout = 0.5`,",
    ),
    "drops_nothing": Broken("ffn", DROPS, ("modes",), "`dropout = 0.5` drops nothing in training"),
    "auxiliary_vector": Broken(
        "ffn",
        {
            **after("self.auxiliary_loss = output.mean(-1) if self.training else None"),
            MADE: f"{MADE}\n            self.auxiliary_loss = None",
        },
        ("modes",),
        "the `auxiliary_loss` of `part` is (2, 6), and not a scalar",
    ),
    "auxiliary_loss_of_padding": Broken(
        "ffn",
        {
            **after("self.auxiliary_loss = output.square().mean() if self.training else None"),
            MADE: f"{MADE}\n            self.auxiliary_loss = None",
        },
        ("modes",),
        "in a call, the `auxiliary_loss` depends on a token that may be padding",
    ),
    "auxiliary_loss_of_padding_in_a_block": Broken(
        "block",
        {
            "            return x, {} if": "            self.auxiliary_loss = x.square().mean() if "
            "self.training else None\n            return x, {} if",
            "self.scales, self.takes = scales, takes": "self.scales, self.takes = scales, takes\n"
            "            self.auxiliary_loss = None",
        },
        ("modes",),
        "in a call with `mask` and `rotation` and `bias`, the `auxiliary_loss` depends on a token",
    ),
    "auxiliary_loss_that_stays": Broken(
        "ffn",
        after("if self.training:", "    self.auxiliary_loss = output.mean()"),
        ("modes",),
        "in evaluation, `part` still has the `auxiliary_loss` of a call in training",
    ),
    "quieter_without_grad": Broken(
        "ffn",
        {**before("x = x if torch.is_grad_enabled() else x / 2"), **WITH_TORCH},
        ("modes",),
        "under `no_grad`",
    ),
    # gradients
    "map_not_called": Broken(
        "ffn",
        {
            RETURN: RETURN.replace("self.down_proj(", "nn.functional.linear(").replace(
                "relu()", "relu(), self.down_proj.weight, self.down_proj.bias"
            ),
        },
        ("gradients",),
        "the weight of `part.down_proj` is read without a call of the map",
    ),
    "detached": Broken(
        "ffn",
        {"self.up_proj(x)": "(0 * self.up_proj(x) + self.up_proj(x).detach())"},
        ("gradients",),
        "no gradient reaches part.up_proj.weight, part.up_proj.bias, the input x",
    ),
    "detached_when_causal": Broken(
        "attention",
        {
            "            if causal:\n": "            if causal:\n                q = q.detach()\n"
            "                scores = scores.detach()\n"
        },
        ("gradients",),
        "in 4 small batches, each with `causal`",
    ),
    "unused": Broken(
        "ffn",
        {"self.up_proj(x).relu": "x.repeat_interleave(2, -1).relu"},
        ("gradients",),
        "no gradient reaches part.up_proj.weight, part.up_proj.bias",
    ),
    "infinite": Broken(
        "ffn",
        before("x = x + (x - x.detach() + (x == 0)).sqrt()"),
        ("gradients",),
        "`the input x` is not finite",
    ),
    "memory_detached": Broken(
        "attention",
        {"else memory": "else memory.detach()"},
        ("gradients",),
        "no gradient reaches the input memory in 4 small batches",
    ),
    # precision
    "overflows": Broken(
        "ffn",
        {RETURN: RETURN + " * 1e30 * 1e30 * 1e-30 * 1e-30"},
        ("precision",),
        "the output of a model in torch.bfloat16 is not finite",
    ),
    "on_the_cpu": Broken(
        "ffn",
        {**WITH_TORCH, RETURN: RETURN + " + torch.zeros(x.shape[-1], dtype=x.dtype)"},
        ("devices",),
        "a call on another device than the CPU failed: ",
    ),
    "mask_on_the_cpu": Broken(
        "attention",
        {", device=x.device)": ")"},
        ("devices",),
        "help: make tensors on the device of x",
    ),
    "table_on_the_cpu": Broken(
        "ffn",
        {
            MADE: MADE
            + '\n            self.register_buffer("factor", torch.empty(()), persistent=False)'
            "\n\n        def reset_buffers(self, *, device):"
            "\n            self.factor = torch.full((), 0.5, dtype=self.factor.dtype)",
            RETURN: RETURN + " * self.factor",
            **WITH_TORCH,
            "residual=True),\n            }": "residual=True),\n            }, computed=1",
        },
        ("devices",),
        "`part.factor` is on cpu, although `reset_buffers` is called for another device",
    ),
    "looks_at_a_value": Broken(
        "ffn",
        before("x = x * float(x.mean().item() > -9)"),
        ("devices",),
        "help: compute with the tensor, as by `torch.where`: `item()` waits for a GPU",
    ),
    "cancels": Broken("ffn", before("x = (x + 1e5) - 1e5"), ("precision",), "in float32"),
    "half": Broken(
        "ffn", {"(x).relu": "(x).half().to(x.dtype).relu"}, ("precision",), "rounds to a narrower"
    ),
    "float32_inside": Broken(  # beside what is in float64
        "ffn",
        {"(x).relu()": "(x).relu() * self.up_proj(x.float().to(x.dtype)).sigmoid()"},
        ("precision",),
        "inside: `aten._to_copy.default` makes torch.float32\n  ",
    ),
    "float32_when_masked": Broken(
        "attention",
        {
            MASKED: "if mask is not None:\n"
            "                scores = scores.to(torch.promote_types(scores.dtype, torch.float32))\n"
            f"            {MASKED}"
        },
        ("precision", "cache"),
        "a call in torch.bfloat16 with `causal` failed: RuntimeError",
    ),
    "rounds_the_bias": Broken(
        "attention",
        {"scores = scores + bias": "scores = scores + bias.half().to(scores.dtype)"},
        ("precision",),
        "rounds to a narrower dtype inside",
    ),
    "state_in_float32": Broken(  # as `keep_state` keeps it
        "attention",
        {
            EXTENDED: f"{EXTENDED}\n"
            "                zero = cache.state[0] if cache.state else x.new_zeros(len(x))\n"
            "                cache.keep_state(zero)\n"
            "                v = v + zero[:, None, None, None]",
            "cache=0 if self.key_width else 2 * self.d_model": "state=0 if self.key_width else 1,\n"
            "            cache=0 if self.key_width else 2 * self.d_model",
        },
        ("cache",),
        "a call in torch.bfloat16 with a `cache` failed: RuntimeError",
    ),
    "equal_weights_in_bfloat16": Broken(
        "attention",
        {
            "weights = scores.softmax(-1)": "weights = scores.softmax(-1)\n"
            "            if x.dtype == torch.bfloat16:\n"
            "                weights = torch.ones_like(weights)"
        },
        ("precision",),
        "the output in bfloat16 has little to do with that in float64",
    ),
    "adds_into_float32": Broken(  # what a map returns in bfloat16 where x is in float32
        "ffn",
        after(
            "flat = torch.zeros_like(x).flatten(0, -2)",
            "flat.index_add_(0, torch.arange(len(flat), device=x.device), output.flatten(0, -2))",
            "output = flat.view(output.shape)",
        )
        | WITH_TORCH,
        ("precision",),
        "training in bfloat16 by autocast, in a call, failed: RuntimeError: ",
    ),
    "own_dtype": Broken(
        "head",
        {"self.out(x)": "self.out(x).float()"},
        ("precision",),
        "puts out torch.float32\nhelp: ",
    ),
    "one_dtype": Broken(
        "ffn",
        {**before("x = x * torch.full((1,), 0.5)"), **WITH_TORCH},
        ("precision", "devices"),
        "a call in torch.bfloat16 failed: RuntimeError: ",
    ),
    # compiles
    "asks_values": Broken(
        "ffn",
        before("x = x if float(x.sum()) < 1e9 else -x"),
        ("devices", "compiles"),
        "that have no values failed",
    ),
    "asks_values_when_causal": Broken(
        "attention",
        {
            "ClassVar[bool] = True": "ClassVar[bool] = False",
            "            if causal:\n": "            if causal and bool(x.isfinite().all()):\n",
        },
        ("devices", "compiles"),
        "a call with tensors that have no values failed",
    ),
    "other_when_compiled": Broken(
        "ffn",
        {**before("x = x / 2 if torch.compiler.is_compiling() else x"), **WITH_TORCH},
        ("compiles",),
        "the output is another when compiled",
    ),
    "rounds_positions": Broken(
        "position",
        {
            "self.weight[positions]": "self.weight[0] * positions.to(x.dtype)[..., None].sin()",
            "def longest": "def the_longest",
        },
        ("precision",),
        "in bfloat16, the positions 99998 and 99999 are encoded the same",
    ),
    # tokens
    "mixes_tokens": Broken(
        "ffn", before("x = x + x.roll(1, -2)"), ("tokens",), "a network that mixes tokens says so"
    ),
    "looks_ahead_unsaid": Broken(
        "ffn",
        {**before("x = x + x.roll(-1, -2)"), FIELD: FIELD + MIXES},
        ("tokens",),
        "what sees later tokens says so: its `looks_ahead` is True",
    ),
    "looks_ahead_by_an_even_function": Broken(
        "ffn",
        {**before("x = x + x.roll(-1, -2).square()"), FIELD: FIELD + MIXES},
        ("tokens",),
        "what sees later tokens says so: its `looks_ahead` is True",
    ),
    "looks_ahead_in_threes": Broken(  # the last of 6 tokens changes no other third
        "ffn",
        {
            **before(
                "thirds = nn.functional.pad(x, (0, 0, 0, -x.shape[-2] % 3)).unflatten(-2, (-1, 3))",
                "mean = thirds.mean(-2, keepdim=True).expand_as(thirds).flatten(-3, -2)",
                "x = x + mean[..., : x.shape[-2], :]",
            ),
            FIELD: FIELD + MIXES,
        },
        ("tokens",),
        "of 6 tokens, those before the token 1 have another output",
    ),
    "looks_ahead_later": Broken(
        "ffn",
        {
            **before("x = x + x.roll(-1 if x.shape[-2] > 8 else 1, -2) * (x.shape[-2] > 8)"),
            FIELD: FIELD + MIXES,
        },
        ("tokens",),
        "of 70 tokens, those before the token 35 have another output",
    ),
    "mixes_padding": Broken(  # the mean of all, hidden or not
        "ffn",
        {
            **TAKES_MASK,
            **before("x = x + x.mean(-2, keepdim=True)"),
            FIELD: FIELD + MASKS + MIXES + LOOKS_AHEAD,
        },
        ("tokens",),
        "a token that the mask (batch, length) hides changes the output for others",
    ),
    "mixes_seen_tokens": Broken(
        "ffn",
        {
            **TAKES_MASK,
            **before(
                "if mask is not None:",
                "    x = x + (~mask).any()",
            ),
            FIELD: FIELD + MASKS,
        },
        ("tokens",),
        "a token has another output when the mask hides another token",
    ),
    "counts_padding": Broken(  # in a mean, of which it leaves out the vectors
        "ffn",
        {
            **WITH_TORCH,
            **TAKES_MASK,
            **before(
                "n_tokens = torch.ones_like(x[..., :1]).cumsum(1)",
                "real = x if mask is None else x * mask[..., None]",
                "x = x + real.cumsum(1) / n_tokens",
            ),
            FIELD: FIELD + MASKS + MIXES,
        },
        ("tokens",),
        "beside padding, which the mask (batch, length) hides, a token has another output",
    ),
    "mask_of_nothing_matters": Broken(
        "ffn",
        {
            **TAKES_MASK,
            **before("x = x if mask is None else x * 2"),
            FIELD: FIELD + MASKS,
        },
        ("tokens",),
        "another with a mask that hides nothing than without one",
    ),
    "one_shape": Broken(
        "ffn",
        before("x = x.view(2, -1, x.shape[-1])"),
        ("rows",),
        "a row alone gives (2, 3, 16), and each of 2 rows (1, 6, 16)\nhelp: any number of rows",
    ),
    "three_dimensions": Broken(
        "ffn",
        before("batch, length, width = x.shape"),
        ("tokens",),
        "a call with x (12, 16) failed: ValueError: not enough values to unpack",
    ),
    "embedding_clamps": Broken(
        "embedding",
        {"self.tokens(ids)": "self.tokens(ids.clamp(0, self.tokens.num_embeddings - 1))"},
        ("interface",),
        "the id 11 gets a vector, and the vocabulary has the ids from 0 to 10: ids of another",
    ),
    "embedding_counts_from_the_end": Broken(  # as indexing does
        "embedding",
        {"self.tokens(ids)": "self.tokens.weight[ids]"},
        ("interface",),
        "the id -1 gets a vector, and the vocabulary has the ids from 0 to 10",
    ),
    "embedding_mixes": Broken(
        "embedding",
        {"= self.tokens(ids)": "= self.tokens(ids).cumsum(-2)"},
        ("masks", "tokens"),
        "a token that the mask (batch, length) hides changes the vectors of others",
    ),
    "embedding_mixes_what_follows": Broken(
        "embedding",
        {"= self.tokens(ids)": "= self.tokens(ids).flip(-2).cumsum(-2).flip(-2)"},
        ("masks", "tokens"),
        "a token that the mask (batch, length) hides changes the vectors of others",
    ),
    "embedding_mixes_what_is_seen": Broken(
        "embedding",
        {
            "= self.tokens(ids)": "= self.tokens(ids)\n            if mask is not None:"
            "\n                x = x * mask[..., None]\n            x = x.cumsum(-2)"
        },
        ("tokens",),
        "an embedding that mixes tokens says so: its `incremental` is False",
    ),
    "embedding_looks_ahead": Broken(
        "embedding",
        {
            "= self.tokens(ids)": "= self.tokens(ids)\n            if mask is not None:"
            "\n                x = x * mask[..., None]"
            "\n            x = x.flip(-2).cumsum(-2).flip(-2)",
            DROPOUT: f"{MIXES}\n{DROPOUT}",
        },
        ("tokens",),
        "what sees later tokens says so: its `looks_ahead` is True",
    ),
    "norm_of_tokens": Broken(
        "norm", {"mean(-1, ": "mean((-2, -1), "}, ("tokens",), "along the last dimension alone"
    ),
    "norm_of_nothing": Broken(
        "norm",
        {" + self.eps)": ")"},
        ("interface",),
        "a token of zeros gives NaN or infinity",
    ),
    "norm_of_a_root": Broken(  # finite, but not its slope
        "norm",
        {"x.abs().mean(-1, keepdim=True)": "x.square().mean(-1, keepdim=True).sqrt()"},
        ("interface",),
        "a token of zeros gives the gradient of its input NaN or infinity",
    ),
    "network_of_nothing": Broken(
        "ffn",
        before("x = x / x.norm(dim=-1, keepdim=True)"),
        ("interface",),
        "a token of zeros gives NaN or infinity",
    ),
    "attention_of_nothing": Broken(
        "attention",
        {
            "q = self.heads(self.q_proj(x))": "x = x / x.norm(dim=-1, keepdim=True)\n"
            "            q = self.heads(self.q_proj(x))"
        },
        ("interface",),
        "a token of zeros gives NaN or infinity",
    ),
    "head_of_nothing": Broken(
        "head",
        {"self.out(x)": "self.out(x / x.norm(dim=-1, keepdim=True))"},
        ("interface",),
        "a token of zeros gives NaN or infinity",
    ),
    "block_of_nothing": Broken(
        "block",
        {
            "further: dict[str, object]": "x = x / x.norm(dim=-1, keepdim=True)\n"
            "            further: dict[str, object]"
        },
        ("interface",),
        "a token of zeros gives NaN or infinity",
    ),
    "norm_of_all": Broken(  # the same whatever the dimensions are
        "norm",
        {"mean(-1, keepdim=True)": "mean()"},
        ("rows",),
        "a row of the batch has another output than alone",
    ),
    "pools_padding": Broken(
        "head",
        {
            **POOLS,
            "self.out(x)": "self.out(x.mean(-2))",
        },
        ("masks",),
        "a token that the mask (batch, length) hides changes the output",
        "from typing import ClassVar",
    ),
    "pools_nothing": Broken(
        "head",
        {
            **POOLS,
            "            output: ": "            seen = x[..., 0] * 0 + 1\n"
            "            if mask is not None:\n"
            "                seen = mask.to(x.dtype)\n"
            "            x = (x * seen[..., None]).sum(-2) / seen.sum(-1, keepdim=True)\n"
            "            output: ",
        },
        ("masks",),
        "a mask that hides everything gives NaN",
        "from typing import ClassVar",
    ),
    "pools_unsaid": Broken(
        "head",
        {"self.out(x)": "self.out(x + x[..., :1, :])"},
        ("tokens",),
        "a head of whole sequences says so",
    ),
    # positions
    "keys_unturned": Broken(
        "attention", {KEYS: "return k, v"}, ("positions",), "the keys are not turned"
    ),
    "queries_unturned": Broken(
        "attention", {QUERIES: "pass"}, ("positions",), "the queries are not turned"
    ),
    "other_head_dim": Broken(
        "attention",
        {"return self.d_model // self.n_heads": "return self.d_model"},
        ("positions",),
        "called with vectors of 8 numbers, and the description's `head_dim`",
    ),
    "bias_ignored": Broken(
        "attention", {"scores = scores + bias": "pass"}, ("positions",), "the `bias` that the"
    ),
    "bias_of_the_first_row": Broken(
        "attention",
        {"scores + bias": "scores + (bias[0] if bias.dim() == 4 else bias)"},
        ("positions", "cache"),
        "a row has another output than alone, with its own",
    ),
    "bias_of_three_dimensions": Broken(
        "attention",
        {"scores = scores + bias": "_, _, _ = bias.shape\n                scores = scores + bias"},
        ("positions", "cache"),
        "a rotation by them, a bias (batch, heads, query, key) failed: ValueError",
    ),
    "positions_of_the_first_row": Broken(
        "attention",
        {
            MIXED: f"{MIXED}\n            if positions is not None:\n"
            "                at = positions if positions.dim() == 1 else positions[0]\n"
            "                scores = scores + at[:, None] * scores.detach()",
        },
        ("positions", "cache"),
        "with positions (batch, query), a rotation by them",
    ),
    "rotation_refused": Broken(
        "attention",
        {QUERIES: "raise ValueError('no rotation')"},
        ("positions", "cache"),
        "a `rotation`, which position schemes give, is refused by ValueError",
    ),
    "bias_refused": Broken(
        "attention",
        {"scores = scores + bias": "raise NotImplementedError('no bias')"},
        ("positions", "cache"),
        "a property `takes_bias` of the description that returns False",
    ),
    "block_unturned": Broken(
        "block", {"rotation=context.rotation": "rotation=None"}, ("positions",), "not turned"
    ),
    "block_unbiased": Broken(
        "block", {"bias=context.bias": "bias=None"}, ("positions",), "changes nothing"
    ),
    "block_without_positions": Broken(
        "block",
        {"positions=context.positions": "positions=None"},
        ("interface",),
        "help: pass on `positions=context.positions`",
    ),
    "residual_unstated": Broken(
        "ffn",
        {DOWN: DOWN.replace(", residual=True", "")},
        ("interface",),
        "no tensor of the layout is `residual`, and the output is linear in `part.down_proj",
    ),
    "residual_unstated_in_attention": Broken(
        "attention",
        {"self.d_model, residual=True": "self.d_model"},
        ("interface",),
        "the output is linear in `part.o_proj.weight`: an init that goes by depth",
    ),
    "probabilities": Broken(
        "head",
        {
            "    def layout": "    @property\n    def classes(self):\n"
            "        return Classes(self.n_classes)\n\n    def layout",
            "self.out(x)": "self.out(x).softmax(-1)",
        },
        ("interface",),
        "the output is one of probabilities, of which a loss, generation and `zoo run` take the",
        "from zoo.purpose import Classes",
    ),
    "block_renames_weights": Broken(
        "block",
        {'{"self_attn": weights}': '{"attn": weights}'},
        ("interface",),
        "the weights are returned by the name `attn`, which no model looks for",
    ),
    "block_loses_weights": Broken(
        "block",
        {'{} if weights is None else {"self_attn": weights}': "{}"},
        ("interface",),
        "the weights that an attention inside returns get lost",
    ),
    # cache
    "cache_ignored": Broken(
        "attention",
        {EXTENDED: "k, v = make()"},
        ("cache",),
        "help: nothing was kept in the `cache`",
    ),
    "cache_of_unturned": Broken(
        "attention",
        {EXTENDED: "k, v = cache.extend(*self.keys_and_values(x, None))"},
        ("cache",),
        "one by one with a `cache`",
    ),
    "cache_of_first_query": Broken(
        "attention", {".tril(n_before)": ".tril()"}, ("cache",), "let the last query see all keys"
    ),
    "cache_forgets": Broken(  # it keeps 8 tokens, more than are in a short call
        "attention",
        {
            EXTENDED: f"{EXTENDED}\n"
            "                k, v = (t[..., -8:, :] for t in (k, v))\n"
            "                mask = None if mask is None else mask[..., -8:]"
        },
        ("cache",),
        "when 70 tokens come with a `cache`",
    ),
    "cache_not_causal": Broken(  # right for one token at a time
        "attention",
        {"if causal:": "if causal and cache is None:"},
        ("cache",),
        "when several tokens come at once with a `cache`, as those of a prompt do",
    ),
    "cache_unmasked": Broken(
        "attention",
        {"if causal:": "mask = None if cache is not None else mask\n            if causal:"},
        ("cache",),
        "with a `cache` and a `mask`, which hides padding on the left",
    ),
    "state_unstated": Broken(
        "attention",
        {EXTENDED: "cache.keep_state(x[:, -1])\n                k, v = cache.extend(*make())"},
        ("cache",),
        "of 2 tokens the cache keeps 80 numbers, and `layout` says 64",
    ),
    "state_counted_for_each_token": Broken(
        "attention",
        {
            EXTENDED: "cache.keep_state(x[:, -1])\n                k, v = cache.extend(*make())",
            "cache=0 if self.key_width else 2 *": "cache=0 if self.key_width else 3 *",
        },
        ("cache",),
        "of 2 tokens the cache keeps 80 numbers, and `layout` says 96",
    ),
    "state_that_grows": Broken(  # right otherwise: all keys and values are there
        "attention",
        {
            EXTENDED: "new = make()\n"
            "                old = cache.state or [t[..., :0, :] for t in new]\n"
            "                k, v = (torch.cat(pair, -2) for pair in zip(old, new))\n"
            "                cache.keep_state(k, v)",
            "cache=0 if self.key_width else 2 * self.d_model": "state=0 if self.key_width else "
            "2 * self.d_model",
        },
        ("cache",),
        "of 2 tokens the cache keeps 64 numbers, and `layout` says 32",
    ),
    "state_changed_in_place": Broken(
        "attention",
        {
            EXTENDED: "new = make()\n"
            "                if cache.state is None:\n"
            "                    shapes = [(*t.shape[:-2], 64, t.shape[-1]) for t in new]\n"
            "                    rooms = [x.new_zeros(shape) for shape in shapes]\n"
            "                    cache.keep_state(*rooms, x.new_zeros(len(x)))\n"
            "                *rooms, n = cache.state\n"
            "                before, end = int(n[0]), int(n[0]) + x.shape[-2]\n"
            "                for room, t in zip(rooms, new):\n"
            "                    room[..., before:end, :] = t\n"
            "                n += x.shape[-2]\n"
            "                cache.keep_state(*rooms, n)\n"
            "                k, v = (room[..., :end, :] for room in rooms)"
        },
        ("cache",),
        "after tokens were taken back from the `cache`",
    ),
    "memory_unmasked_with_cache": Broken(
        "attention",
        {
            "k, v = cache.of_memory(make)": "mask = None\n"
            "                k, v = cache.of_memory(make)"
        },
        ("cache",),
        "over a memory: the output is another when tokens come with a `cache` and a `mask`",
    ),
    "cache_kept_by_attribute": Broken(
        "attention",
        {
            EXTENDED: "k, v = make()\n"
            "                if hasattr(cache, 'kept'):\n"
            "                    k, v = (torch.cat(p, -2) for p in zip(cache.kept, (k, v)))\n"
            "                cache.kept = k, v"
        },
        ("cache",),
        "keeps `kept` as a new attribute of the `cache`, which is not reordered",
    ),
    "cache_kept_elsewhere": Broken(  # where no reordering reaches it
        "attention",
        {
            "    class Module(nn.Module):": "    kept = {}\n\n    class Module(nn.Module):",
            EXTENDED: "kept.setdefault(cache, []).append(make())\n"
            "                k, v = (torch.cat(p, -2) for p in zip(*kept[cache], strict=True))",
        },
        ("cache",),
        "a call after the rows of the `cache` were reordered and repeated, as beam search does "
        "failed: RuntimeError: Sizes of tensors must match",
    ),
    "builder_without_decode": Broken(
        "builder",
        GENERATES,
        ("cache", "declared"),
        "zoo.generate failed: AttributeError: 'Module' object has no attribute 'decode'",
        "from zoo.purpose import Generation",
    ),
    "builder_forgets": Broken(  # its `decode` sees only the next token
        "builder",
        {
            **GENERATES,
            "        def forward(": "        def decode(self, target, memory, *, target_mask, "
            "memory_mask, cache):\n"
            "            at = torch.arange(target.shape[1])\n"
            "            context = LayerContext(positions=at, causal=True)\n"
            "            x = self.embed(target, at, token_types=None, mask=None)\n"
            "            for layer in self.layers:\n"
            "                x, _ = layer(x, context)\n"
            "            return x\n\n        def forward(",
        },
        ("cache", "declared"),
        "what `zoo.generate` scores is another than what a call with all tokens gives",
        "from zoo.purpose import Generation",
    ),
    "builder_generates_unmasked": Broken(  # its cache does not know what is padding
        "builder",
        {
            **GENERATES,
            "        def forward(": "        def decode(self, target, memory, *, target_mask, "
            "memory_mask, cache):\n"
            "            n, device = target.shape[1], target.device\n"
            "            at = cache.past.append(n, seen=None, counted=None, device=device)\n"
            "            x = self.embed(target, at, token_types=None, mask=None)\n"
            "            for number, layer in enumerate(self.layers):\n"
            "                kept = cache.layer(number)\n"
            "                context = LayerContext(positions=at, causal=True, cache=kept)\n"
            "                x, _ = layer(x, context)\n"
            "            return x\n\n        def forward(",
        },
        ("cache", "declared"),
        "what `zoo.generate` scores is another than what a call with all tokens gives",
        "from zoo.purpose import Generation",
    ),
    "builder_recorded_number": Broken(  # what Python counts is recorded as it was
        "builder",
        {
            "    def ties(self)": GENERATES["    def ties(self)"].replace(
                "(self.vocab)", "(self.vocab, not_recordable=())"
            ),
            "        def forward(": "        def decode(self, target, memory, *, target_mask, "
            "memory_mask, cache):\n"
            "            n, device = target.shape[1], target.device\n"
            "            at = cache.past.append(\n"
            "                n, seen=target_mask, counted=target_mask, device=device\n"
            "            )\n"
            "            x = self.embed(target, at, token_types=None, mask=None)\n"
            "            mask = cache.past.mask\n"
            "            if mask is not None:\n"
            "                there = torch.arange(mask.shape[-1], device=device)\n"
            "                mask = mask & (there < cache.past.length)\n"
            "            for number, layer in enumerate(self.layers):\n"
            "                context = LayerContext(\n"
            "                    mask=mask, positions=at, causal=True, cache=cache.layer(number)\n"
            "                )\n"
            "                x, _ = layer(x, context)\n"
            "            return x\n\n        def forward(",
        },
        ("cache", "declared"),
        "the scores are others in a step that is recorded, for a CUDA graph",
        "from zoo.purpose import Generation",
    ),
    "recorded_at_the_last_key": Broken(  # a window of two tokens, in a cache that has no room
        "attention",
        {".tril(n_before)": ".tril(n_before).triu(n_before - 1)"},
        ("cache",),
        "the output is another in a step that is recorded (`recordable`)\n"
        "help: `cache.extend` then returns room for all tokens there will be",
    ),
    "recorded_number": Broken(  # what Python counts is recorded as it was
        "attention",
        {
            EXTENDED: f"{EXTENDED}\n"
            "                there = torch.arange(k.shape[-2], device=x.device)\n"
            "                seen = there < cache.past.length\n"
            "                mask = seen if mask is None else mask & seen"
        },
        ("cache",),
        "the output is another in a step that is recorded (`recordable`)",
    ),
    "recorded_looks_at_a_value": Broken(
        "attention",
        {
            EXTENDED: f"{EXTENDED}\n"
            "                if bool(x.isnan().any()):\n"
            "                    raise RuntimeError"
        },
        ("cache",),
        "`aten._local_scalar_dense.default` looks at a value, for which it would wait for the GPU",
    ),
    "block_hides_what_is_not_recorded": Broken(
        "block",
        {"(*attention, *network)": "attention"},
        ("declared",),
        "with `ffn` that cannot be recorded, `not_recordable` is empty, so that the model is",
    ),
    "cache_uncounted": Broken(
        "attention",
        {"cache=0 if self.key_width else 2 * ": "cache=0 if self.key_width else "},
        ("cache",),
        "of 2 tokens the cache keeps 64 numbers, and `layout` says 32",
    ),
    "memory_uncounted": Broken(
        "attention",
        {"memory_cache=2 * self": "memory_cache=3 * self"},
        ("cache",),
        "over a memory: of 2 tokens and 5 tokens of a memory the cache keeps 160 numbers, and",
    ),
    "cache_window_not_kept": Broken(
        "attention",
        {"memory_cache=2 *": "cache_window=3, memory_cache=2 *"},
        ("cache",),
        "of 12 tokens the cache keeps 384 numbers, and `layout` says 192",
    ),
    "cache_counts_calls": Broken(
        "attention",
        {
            EXTENDED: f"{EXTENDED}\n"
            "                self.n_calls = getattr(self, 'n_calls', 0) + 1\n"
            "                k = k * (1 + 0.001 * self.n_calls)"
        },
        ("cache",),
        "a call with a `cache` leaves another `part.n_calls` behind",
    ),
    "cache_counts_calls_of_all": Broken(
        "attention",
        {
            EXTENDED: f"{EXTENDED}\n"
            "                Module.n_calls = getattr(Module, 'n_calls', 0) + 1\n"
            "                k = k * (1 + 0.001 * Module.n_calls)"
        },
        ("cache",),
        "a call with a `cache` changes `Module.n_calls`, which other models in this process share",
    ),
    "cache_counts_calls_inside": Broken(  # in what nobody can look into
        "attention",
        {
            "self.n_heads = n_heads": "self.n_heads, self.numbers = n_heads, count()",
            EXTENDED: f"{EXTENDED}\n                k = k * (1 + 0.001 * next(self.numbers))",
        },
        ("cache",),
        "a second call with a `cache` with the same input gives another output",
        "from itertools import count",
    ),
    "block_counts_calls": Broken(
        "block",
        {
            'further["cache"] = ': "self.n_calls = getattr(self, 'n_calls', 0) + 1\n"
            "                x = x * (1 + 0.001 * self.n_calls)\n"
            '                further["cache"] = '
        },
        ("cache",),
        "a call with a `cache` leaves another `part.n_calls` behind",
    ),
    # branches
    "residual_unscaled": Broken(
        "block", {"residual * self": "self"}, ("branches",), "`residual_scale` of the branch"
    ),
    "unscaled_without_a_place_for_norms": Broken(
        "block",
        {
            "residual * self": "self",
            "        if self.memory_width is not None:\n": (
                "        if 'out' in self.self_attn.norms:\n"
                "            raise ValueError('no norm of the sum')\n"
                "        if self.memory_width is not None:\n"
            ),
        },
        ("branches",),
        "`residual_scale` of the branch `self_attn` changes nothing",
    ),
    "skip_unscaled": Broken(
        "block", {"skip * x": "x"}, ("branches",), "`skip_scale` of the branch `self_attn`"
    ),
    "parallel_ignored": Broken(
        "block",
        {'if self.norm_placement == "parallel"': "if False"},
        ("branches",),
        '`norm_placement = "parallel"`, by which all branches read the same x, changes nothing',
    ),
    "model_with_bare_branches": Broken(
        "builder",
        {
            'Annotated[Block, Slot("block")]': 'Annotated[Attention, Slot("attention")]',
            "x, weights = layer(x, context)\n": "more, weights = layer(x, None, causal=True, "
            "mask=context.mask, positions=positions, return_weights=return_attention)\n"
            "                x = x + more\n",
            "maps += weights.values()": "maps += [] if weights is None else [weights]",
        },
        ("branches",),
        "the norm at `pre` of the branch `block` changes nothing",
        "from zoo.slots import Attention",
    ),
    "out_norm_ignored": Broken(
        "block", {'self.normed(name, "out", ': "("}, ("branches",), "the norm at `out` of the"
    ),
    # cuts
    "cut_along_other_axis": Broken(
        "ffn",
        {**CUT, UP: UP.replace(")", ", cut=row_wise(self.d_ff))")},
        ("cuts",),
        "the cut of `part.up_proj` spreads 32 units over axis 1 of `weight`, which has 16 elements",
    ),
    "cut_along_no_axis": Broken(
        "ffn",
        {**CUT, UP: UP.replace(")", ", cut=Cut({'weight': 2}, self.d_ff, outputs=-1))")},
        ("cuts",),
        "the cut of `part.up_proj` is along axis 2 of `weight`, whose shape is (32, 16)",
    ),
    "cut_of_no_tensor": Broken(
        "ffn",
        {**CUT, UP: UP.replace(")", ", cut=Cut({'wieght': 0}, self.d_ff, outputs=-1))")},
        ("cuts",),
        "the cut of `part.up_proj` names wieght, and its tensors are weight, bias",
    ),
    "cut_row_wise_first": Broken(
        "ffn",
        {**CUT, UP: UP.replace(")", ", cut=row_wise(self.d_model))")},
        ("cuts",),
        "`part.up_proj` is cut to make of a part of its input to all of its output (row_wise), but "
        "it is given x (2, 6, 16), where that would be (2, 6, 8)",
    ),
    "cut_column_wise_last": Broken(
        "ffn",
        {**CUT, DOWN: DOWN.replace("True)", "True, cut=column_wise(self.d_model))")},
        ("cuts",),
        "`part.down_proj` is cut to make of all of its input to a part of its output (column_wise)",
    ),
    "cut_ends_the_process": Broken(
        "ffn",
        {
            **CUT,
            **WITH_TORCH,
            MADE: f"{MADE}\n            if torch.distributed.is_initialized():"
            "\n                os._exit(3)",
        },
        ("cuts",),
        "a process that tries it ended with status 3",
        "import os",
    ),
    "cut_once": Broken(
        "ffn",
        {**CUT, DOWN: DOWN},
        ("cuts",),
        "computing in 2 processes failed: RuntimeError",
    ),
    "cut_around_a_norm": Broken(
        "ffn",
        {**CUT, "self.up_proj(x).relu()": "nn.functional.normalize(self.up_proj(x), dim=-1)"},
        ("cuts",),
        "but what it is given is no part of what the whole model computes there",
    ),
    "cut_loses_a_gradient": Broken(  # where there is a part of the 32 hidden units alone
        "ffn",
        {
            **CUT,
            RETURN: "x = self.up_proj(x).relu()\n"
            "            x = x if x.shape[-1] == 32 else x.detach()\n"
            "            output: torch.Tensor = self.down_proj(x)",
        },
        ("cuts",),
        "there is no gradient of `part.up_proj.weight` in 2 processes, each with its parts",
    ),
    "cut_gives_nan": Broken(
        "ffn",
        {
            **CUT,
            RETURN: f"{RETURN}\n"
            "            if self.up_proj(x).shape[-1] != 32:\n"
            "                output = output * float('nan')",
        },
        ("cuts",),
        "the output is another in 2 processes, each with its parts, than in one",
    ),
    "cut_by_itself_and_not": Broken(
        "norm",
        {
            '{"weight": vector(self.width, value=1.0)}': '{"weight": vector(self.width, value=1.0)}'
            ", cut=Cut({'weight': 0}, self.width, by_itself=True)",
            "import Layout, vector": "import Cut, Layout, vector",
        },
        ("cuts",),
        "computing in 2 processes failed: RuntimeError",
    ),
    "cut_norm": Broken(
        "norm",
        {
            '{"weight": vector(self.width, value=1.0)}': '{"weight": vector(self.width, value=1.0)}'
            ", cut=Cut({'weight': 0}, self.width, inputs=-1, outputs=-1)",
            "import Layout, vector": "import Cut, Layout, vector",
        },
        ("cuts",),
        "`part` is cut to make of a part of its input to a part of its output, but",
    ),
    "cut_heads_counted": Broken(
        "attention",
        {
            '"q_proj": linear(self.d_model, self.d_model)': '"q_proj": linear(self.d_model, '
            "self.d_model, cut=column_wise(self.n_heads))",
            '"k_proj": linear(key_width, self.d_model)': '"k_proj": linear(key_width, '
            "self.d_model, cut=column_wise(self.n_heads))",
            '"v_proj": linear(key_width, self.d_model)': '"v_proj": linear(key_width, '
            "self.d_model, cut=column_wise(self.n_heads))",
            "self.d_model, residual=True)": "self.d_model, residual=True, cut=row_wise("
            "self.n_heads))",
            LAYOUT: "from zoo.layout import Layout, column_wise, linear, row_wise",
        },
        ("cuts",),
        "a norm, a softmax or a number of all units has no place there",
    ),
    # masks
    "mask_of_one_head": Broken(
        "attention",
        {HIDE: "weights = weights * mask.reshape(-1, 1, *mask.shape[-2:])"},
        ("masks",),
        "masks failed: RuntimeError: The size of tensor a (2) must match",
    ),
    "mask_of_the_first_head": Broken(
        "attention",
        {
            MASKED: "if mask is not None and mask.dim() == 4 and mask.shape[1] > 1:\n"
            f"                mask = ~mask\n            {MASKED}"
        },
        ("masks",),
        "a mask (batch, heads, query, key), the same for each head, is another",
    ),
    "mask_ignored": Broken(
        "attention",
        {MASKED: "if causal or (return_weights and mask is not None):  #", HIDE: "pass"},
        ("masks",),
        "help: what `mask` hides, and with `causal` what is later, has the weight 0 in attention",
    ),
    "mask_ignored_with_causal": Broken(
        "attention",
        {"mask = earlier if mask is None else mask & earlier": "mask = earlier"},
        ("masks", "cache"),
        "a key at the start with `causal` that a mask (batch, 1, 1, key) hides changes the output",
    ),
    "mask_of_the_last_query": Broken(  # as of a recurrence that refuses no other masks
        "attention",
        {
            **KNOWS_NO_CACHE,
            MASKED: "if mask is not None and not causal:\n"
            f"                mask = mask[..., -1:, :]\n            {MASKED}",
        },
        ("masks",),
        "a key that a mask (batch, 1, query, key) hides from a query changes its output",
    ),
    "mask_weak": Broken(
        "attention", {LOWEST: "-20.0", HIDE: "pass"}, ("masks", "cache"), "hides changes the output"
    ),
    "mask_of_first_query": Broken(
        "attention",
        {MASKED: f"mask = None if mask is None else mask[..., :1, :]\n            {MASKED}"},
        ("gradients", "masks", "cache"),
        "no gradient reaches part.q_proj.weight",
    ),
    "causal_ignored": Broken(
        "attention",
        {"if causal:": "if causal and bias is not None:"},
        ("masks", "cache"),
        "`causal`",
    ),
    "causal_in_fives": Broken(  # the last of 6 tokens is in another group
        "attention",
        {
            **KNOWS_NO_CACHE,
            "earlier = earlier.tril(n_before)": "five = torch.arange(len(earlier)) // 5\n"
            "                earlier = earlier.tril(n_before)\n"
            "                earlier = earlier | (five[:, None] == five).to(x.device)",
        },
        ("masks",),
        "the position 1 of 6 changes the output of earlier ones, although `causal` is set",
    ),
    "causal_at_first": Broken(
        "attention",
        {
            **KNOWS_NO_CACHE,
            "earlier.tril(n_before)": "earlier.tril(n_before + (k.shape[-2] > 8))",
        },
        ("masks",),
        "the position 35 of 70 changes the output of earlier ones, although `causal` is set",
    ),
    "nan_for_nothing": Broken(
        "attention",
        {LOWEST: f"{LOWEST} if return_weights else -float('inf')", HIDE: "pass"},
        ("masks",),
        "gives NaN",
    ),
    "weights_unmasked": Broken(
        "attention",
        {OUTPUT: f"weights = scores.softmax(-2)\n            {OUTPUT}"},
        ("masks",),
        "the weight of a key at the end that the mask hides is not 0",
    ),
    "block_reads_padding": Broken(  # a causal convolution of two tokens
        "block",
        {
            "return x, {} if": "x = x + nn.functional.pad(x[:, :-1], (0, 0, 1, 0))\n"
            "            return x, {} if",
            "return attention + network": 'return (*attention, *network, "the convolution")',
        },
        ("masks",),
        "a key at the start that a mask (batch, 1, 1, key) hides changes the output",
    ),
    "another_shape_with_a_mask": Broken(
        "attention",
        {OUTPUT: OUTPUT.replace("output,", "output if mask is None else output[None],")},
        ("determinism",),
        "must be (2, 6, 16), not (1, 2, 6, 16)",
    ),
    "never_later": Broken(
        "attention",
        {"if causal:": "if memory is None:"},
        ("masks",),
        "no later position changes the output, although `causal` is not set",
    ),
    "block_never_later": Broken(
        "block", {"causal=context.causal": "causal=True"}, ("masks",), "`only_causal` is True"
    ),
    "block_unmasked": Broken(
        "block", {"mask=context.mask": "mask=None"}, ("masks", "cache"), "hides changes the output"
    ),
    "model_sees_later": Broken(
        "builder",
        {"causal=True": "causal=False"},
        ("masks",),
        "the position 1 of 6 in `target` changes the output at earlier ones, which is to predict",
    ),
    "model_sees_later_in_long_texts": Broken(
        "builder",
        {"causal=True": "causal=length < 20"},
        ("masks",),
        "the position 35 of 70 in `target` changes the output at earlier ones",
    ),
    "model_unmasked": Broken(
        "builder",
        {"mask=target_mask,\n                causal": "causal"},
        ("masks",),
        "`target_mask`",
    ),
    "field_not_passed_on": Broken(  # the module has an attribute of the same name
        "ffn",
        {
            FIELD: FIELD + "    slope: float = 0.1\n",
            "d_ff: int) -> None": "d_ff: int, slope: float = 0.1) -> None",
            MADE: f"{MADE}\n            self.slope = slope",
            **before("x = self.slope * x"),
        },
        ("schema",),
        "nothing reads the field `slope`",
    ),
    "field_unread": Broken(
        "ffn",
        {FIELD: FIELD + "    slope: float = 0.1\n"},
        ("schema",),
        "nothing reads the field `slope`: a spec that states it would change nothing",
    ),
    "part_unread": Broken(
        "embedding",
        {DROPOUT: DROPOUT + '    last_norm: Annotated[Norm, Slot("norm", width="d_model")]\n'},
        ("schema",),
        "nothing reads the field `last_norm`: a spec that states it would change nothing",
        "from typing import Annotated\nfrom zoo.component import Slot\nfrom zoo.slots import Norm",
    ),
    "contradiction_of_no_key": Broken(
        "attention",
        {'(message, "n_heads"': '(message, "n_head"'},
        ("schema",),
        "a contradiction names the key `n_head`, which no component has",
    ),
    "mask_of_sinks": Broken(  # a query sees the first key, which may be padding, and two more
        "attention",
        {
            "earlier = earlier.tril(n_before)": "near = earlier.tril(n_before).triu(n_before - 1)\n"
            "                near[:, 0] = True\n"
            "                earlier = near & earlier.tril(n_before)",
            RECORDABLE: "",
        },
        ("masks",),
        "beside padding at the start with `causal`, which a mask (batch, 1, 1, key) hides, a row",
    ),
    "head_counts_padding": Broken(
        "head",
        {
            **POOLS,
            "output: torch.Tensor = self.out(x)": "x = x if mask is None else x * mask[..., None]\n"
            "            output: torch.Tensor = self.out(x.mean(1))",
        },
        ("masks",),
        "beside padding at the end, which the mask (batch, length) hides, a sequence has another",
        "from typing import ClassVar",
    ),
    "embedding_counts_padding": Broken(
        "embedding",
        {
            "    def layout": MIXES.lstrip("\n") + "\n    def layout",
            "x: torch.Tensor = self.tokens(ids)\n": "x: torch.Tensor = self.tokens(ids)\n"
            "            real = x if mask is None else x * mask[..., None]\n"
            "            n_tokens = (ids >= 0).cumsum(1)[..., None]\n"
            "            x = x + real.cumsum(1) / n_tokens\n",
        },
        ("masks",),
        "beside padding, which the mask (batch, length) hides, tokens have other vectors",
    ),
    "model_counts_padding": Broken(
        "builder",
        {
            "output = self.head(x)": "real = x if padding is None else x * padding[..., None]\n"
            "            output = self.head(real).mean(1)"
        },
        ("masks",),
        "beside padding at the end, which `target_mask` hides, the output is another than without",
    ),
    "block_hides_padding_from_its_network": Broken(
        "block",
        {'given = {"mask": context.tokens,': 'given = {"mask": None,'},
        ("masks",),
        "with `ffn` that takes a mask: a key at the start that a mask (batch, 1, 1, key) hides",
    ),
    "model_hides_padding_from_its_blocks": Broken(
        "builder",
        {"                tokens=padding,\n": ""},
        ("masks",),
        "with `block.ffn` that takes a mask: a token that `target_mask` hides changes the output",
    ),
    "model_hides_padding_from_its_embedding": Broken(
        "builder",
        {"mask=padding)": "mask=None)"},
        ("masks",),
        "with `embedding` that takes a mask: a token that `target_mask` hides changes the output",
    ),
    # declared
    "ties_not_made": Broken(
        "builder",
        {"setattr(model.get_submodule(owner), attribute": "(owner, attribute"},
        ("declared",),
        "`head.out.weight` is tied to nothing in the module and to embed.tokens.weight in the spec",
    ),
    "ties_unstated": Broken(
        "builder",
        {'{f"head.{name}": target for name, target in self.head.ties(TOKENS).items()}': "{}"},
        ("declared",),
        "with `head` that is tied to the token table, `ties` is empty",
    ),
    "block_hides_its_attention": Broken(
        "block",
        {
            "    @property\n    def self_attention(self) -> Attention:\n"
            "        return self.self_attn\n\n": ""
        },
        ("declared",),
        "`self_attention` is None, so that the stack cannot ask",
    ),
    "block_hides_that_it_sees_ahead": Broken(
        "block",
        {'return (f"ffn `{self.ffn.kind}`",) if self.ffn.looks_ahead': "return () if self.ffn"},
        ("declared",),
        "with `ffn` that see later tokens, `looks_ahead` is empty",
    ),
    "block_hides_that_it_mixes": Broken(
        "block",
        {"return attention + network": "return attention"},
        ("declared",),
        "with `ffn` that need all tokens at once, `not_incremental` is empty",
    ),
    "builder_hides_that_it_sees_ahead": Broken(  # it generates without a cache, rightly
        "builder",
        {
            "    def ties(self)": GENERATES["    def ties(self)"].replace(
                "(self.vocab)", '(self.vocab, not_incremental=("all",))'
            ),
            "        def forward(": "        def decode(self, target, memory, *, target_mask, "
            "memory_mask, cache):\n"
            "            at = torch.arange(target.shape[1])\n"
            "            context = LayerContext(positions=at, causal=True)\n"
            "            x = self.embed(target, at, token_types=None, mask=None)\n"
            "            for layer in self.layers:\n"
            "                x, _ = layer(x, context)\n"
            "            return x\n\n        def forward(",
        },
        ("declared",),
        "`block.ffn` that see later tokens, `looks_ahead` is empty, so that the model is trained",
        "from zoo.purpose import Generation",
    ),
    "model_nan_for_nothing": Broken(
        "builder",
        {"output = self.head(x)": f"{SHARE}\n            output = self.head(x)"},
        ("masks",),
        "a `target_mask` that hides everything gives NaN",
    ),
}
"""The broken components, by the names that they are registered under."""
