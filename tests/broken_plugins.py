"""Components that break one promise each: a template of `zoo plugin new` with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Broken:
    """What is replaced in the template of a slot, the only checks that fail then, and a part of the
    reason that the first of them gives. `imports` is a further line at the top."""

    slot: str
    change: Mapping[str, str]
    failing: tuple[str, ...]
    reason: str
    imports: str = ""


# In the template of `ffn`:
UP = '"up_proj": linear(self.d_model, self.d_ff),'
FIELD = '    """The inner width."""\n'
TORCH = "    from torch import nn\n\n    class"
MADE = "self.down_proj = nn.Linear(d_ff, d_model)"
RETURN = "return self.down_proj(self.up_proj(x).relu())"
BUILT = "return module_class()(d_model=self.d_model, d_ff=self.d_ff)"
WITH_TORCH = {TORCH: f"    import torch\n{TORCH}"}

# In the template of `attention`:
LOWEST = "torch.finfo(scores.dtype).min"
HIDE = "weights = weights.masked_fill(~mask, 0.0)"
MASKED = "if mask is not None:  #"
OUTPUT = "return output, weights if return_weights else None"

INCREMENTAL = """\
    @property
    def incremental(self):
        return True

"""

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
    """Lines of a feed-forward module's `forward`, before its own."""
    return {RETURN: "\n            ".join([*lines, RETURN])}


BROKEN: Mapping[str, Broken] = {
    # imports
    "imports_torch": Broken("ffn", {}, ("imports",), "do it inside `build`", "import torch"),
    "no_python": Broken("ffn", {"class NoPython": "clas NoPython"}, ("imports",), "SyntaxError"),
    "leaves": Broken("ffn", {"@cache": "raise SystemExit(3)"}, ("imports",), "SystemExit: 3"),
    "ends_the_process": Broken(
        "ffn",
        {"@cache": "os._exit(7)"},
        ("imports",),
        "ends the process, with status 7",
        "import os",
    ),
    "other_slot": Broken(
        "ffn", {"(FeedForward)": "(Init)"}, ("imports",), "slot", "from zoo.slots import Init"
    ),
    # schema
    "untold_type": Broken(
        "ffn",
        {FIELD: FIELD + "    inner: Callable[[int], int] = abs\n"},
        ("schema",),
        "`inner` has no JSON Schema",
        "from collections.abc import Callable",
    ),
    # example
    "no_guess": Broken(
        "ffn",
        {FIELD: FIELD + "    words: tuple[str, ...]\n"},
        ("example",),
        "in the description's `example`",
    ),
    "bad_guess": Broken(
        "ffn",
        {FIELD: FIELD + "    ratio: float = Field(gt=3.0)\n"},
        ("example",),
        "greater than 3",
        "from pydantic import Field",
    ),
    # meta
    "build_raises": Broken("ffn", {MADE: "raise OSError('no')"}, ("meta",), "OSError: no"),
    "own_device": Broken(
        "ffn",
        {MADE: MADE[:-1] + ", device='cpu')"},
        ("meta",),
        "`part.down_proj.weight` is built on cpu",
    ),
    # layout
    "bias_untold": Broken(
        "ffn", {UP: UP.replace(")", ", bias=False)")}, ("layout",), "`part.up_proj.bias`"
    ),
    "other_shape": Broken("ffn", {UP: UP.replace("d_ff", "d_model")}, ("layout",), "[16, 16]"),
    "other_name": Broken("ffn", {UP: UP.replace("up", "in")}, ("layout",), "`part.in_proj"),
    "buffer_untold": Broken(
        "norm", {"nn.Parameter(": "nn.Buffer("}, ("layout",), "`part.weight` is a float buffer"
    ),
    # interface
    "other_width": Broken(
        "ffn", {RETURN: RETURN + "[..., :3]"}, ("interface",), "(2, 6, 16), not (2, 6, 3)"
    ),
    "no_tensor": Broken("ffn", {RETURN: RETURN + ", None"}, ("interface",), "not tuple"),
    "call_raises": Broken("ffn", before("raise KeyError(x)"), ("interface",), "KeyError"),
    "sequential": Broken("ffn", {BUILT: SEQUENTIAL}, ("interface",), "bare Sequential"),
    "weights_matter": Broken(
        "attention",
        {OUTPUT: OUTPUT.replace("output,", "output * (1 + return_weights),")},
        ("interface",),
        "the output is another when `return_weights` is set",
    ),
    "weights_unasked": Broken(
        "attention", {OUTPUT: "return output, weights"}, ("interface",), "is not set"
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
    "narrow_embedding": Broken(
        "embedding",
        {"return self.dropout(x)": "return self.dropout(x)[..., :3]"},
        ("interface",),
        "the output must be (2, 6, 16), not (2, 6, 3)",
    ),
    "no_positions": Broken(
        "embedding",
        {"x = self.positions.embed(x, positions)": "pass"},
        ("interface",),
        "the position scheme that `build` receives is not applied",
    ),
    "narrow_position": Broken(
        "position",
        {"x + self.weight[positions]": "(x + self.weight[positions])[..., :3]"},
        ("interface",),
        "what `embed` returns must be (2, 6, 16), not (2, 6, 3)",
    ),
    "unbatched_head": Broken(
        "head", {"self.out(x)": "self.out(x)[0]"}, ("interface",), "must be (2, 6, any), not (6, 2)"
    ),
    # determinism
    "random_start": Broken(
        "init",
        {"Uniform(self.bound)": "Uniform(self.bound * random())"},
        ("determinism",),
        "has other values in a second build",
        "from random import random",
    ),
    "random_table": Broken(
        "ffn",
        {MADE: MADE + NOISE, RETURN: RETURN + " + self.noise", **WITH_TORCH},
        ("determinism", "saving", "precision"),
        "`part.noise` has other values",
    ),
    "counts_calls": Broken(
        "ffn",
        before("self.n = getattr(self, 'n', 0) + 1", "x = x * self.n"),
        ("determinism", "modes", "compiles", "tokens"),
        "a call leaves another `part.n` behind",
    ),
    # saving
    "doubles": Broken(
        "ffn",
        {FIELD: FIELD + DOUBLED},
        ("saving",),
        "is another spec",
        "from pydantic import field_validator",
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
        "ffn", before("x = 2 * x if self.training else x"), ("modes",), "in training mode"
    ),
    "quieter_without_grad": Broken(
        "ffn",
        {**before("x = x if torch.is_grad_enabled() else x / 2"), **WITH_TORCH},
        ("modes",),
        "under `no_grad`",
    ),
    # gradients
    "detached": Broken(
        "ffn",
        {"(x).relu": "(x).detach().relu"},
        ("gradients",),
        "no gradient reaches part.up_proj.weight, part.up_proj.bias, the input x",
    ),
    "unused": Broken(
        "ffn",
        {"self.up_proj(x).relu": "x.repeat(1, 1, 2).relu"},
        ("gradients",),
        "no gradient reaches part.up_proj.weight, part.up_proj.bias",
    ),
    "infinite": Broken(
        "ffn", before("x = x + (x - x).sqrt()"), ("gradients",), "`the input x` is not finite"
    ),
    "memory_detached": Broken(
        "attention",
        {"else memory": "else memory.detach()"},
        ("gradients",),
        "over a memory: no gradient reaches the input memory",
    ),
    "cache_ignored": Broken(
        "attention",
        {
            "    def layout(self)": INCREMENTAL + "    def layout(self)",
            "return_weights: bool = False": "return_weights: bool = False, cache=None",
        },
        ("cache",),
        "one by one with a `cache`",
    ),
    # precision
    "cancels": Broken("ffn", before("x = (x + 1e5) - 1e5"), ("precision",), "in float32"),
    "half": Broken(
        "ffn", {"(x).relu": "(x).half().to(x.dtype).relu"}, ("precision",), "rounds to a narrower"
    ),
    "own_dtype": Broken(
        "head", {"self.out(x)": "self.out(x).float()"}, ("precision",), "puts out torch.float32"
    ),
    # compiles
    "asks_values": Broken(
        "ffn", before("x = x if float(x.sum()) < 1e9 else -x"), ("compiles",), "breaks the graph"
    ),
    "other_when_compiled": Broken(
        "ffn",
        {**before("x = x / 2 if torch.compiler.is_compiling() else x"), **WITH_TORCH},
        ("compiles",),
        "the output is another when compiled",
    ),
    # masks
    "mask_ignored": Broken(
        "attention", {MASKED: "if causal:  #", HIDE: "pass"}, ("masks",), "hides changes the output"
    ),
    "mask_weak": Broken(
        "attention", {LOWEST: "-20.0", HIDE: "pass"}, ("masks",), "hides changes the output"
    ),
    "mask_of_first_query": Broken(
        "attention",
        {MASKED: f"mask = None if mask is None else mask[..., :1, :]\n            {MASKED}"},
        ("masks",),
        "hides from a query changes its output",
    ),
    "causal_ignored": Broken(
        "attention", {"if causal:": "if causal and bias is not None:"}, ("masks",), "`causal`"
    ),
    "nan_for_nothing": Broken(
        "attention", {LOWEST: "-float('inf')", HIDE: "pass"}, ("masks",), "gives NaN"
    ),
    "weights_unmasked": Broken(
        "attention",
        {OUTPUT: f"weights = scores.softmax(-2)\n            {OUTPUT}"},
        ("masks",),
        "the weight of a key that the mask hides is not 0",
    ),
    "block_unmasked": Broken(
        "block", {"mask=context.mask": "mask=None"}, ("masks",), "hides changes the output"
    ),
    "model_unmasked": Broken(
        "builder",
        {"mask=target_mask,\n                causal": "causal"},
        ("masks",),
        "`target_mask`",
    ),
    "model_nan_for_nothing": Broken(
        "builder",
        {"output = self.head(x)": f"{SHARE}\n            output = self.head(x)"},
        ("masks",),
        "a `target_mask` that hides everything gives NaN",
    ),
}
"""By the names that they are registered under."""
