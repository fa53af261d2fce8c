"""Multi-head attention: the `attention` slot."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Probability, Shared, Size, Slot, contradiction
from zoo.layout import Cut, Layout, Tensor, column_wise, linear, row_wise, vector
from zoo.only_with import UNSTATED, NotWith, OnlyWith, stated
from zoo.slots import Attention, KeyForm, Norm
from zoo_components.heads import (
    against_fused,
    check_default_head_dim,
    check_divisible,
    default_head_dim,
    heads_text,
    temperature_of,
)
from zoo_components.norm import NoNorm, of_width
from zoo_components.optional import PositiveFloatOrNone, SizeOrNone, number
from zoo_components.projections import ALL, Projections

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.attention import MultiHeadAttention
    from zoo_components.modules.heads import Gate
    from zoo_components.modules.masks import Reach
    from zoo_components.modules.scores import Scoring

Module = TypeVar("Module", bound="MultiHeadAttention")
NotNegativeInt = Annotated[int, Field(ge=0)]


class MultiHead(Attention):
    """Scaled dot-product attention with several heads (Vaswani et al. 2017, section 3.2):
    softmax(scale * q k^T) v for each head. With fewer key-value heads than heads it is
    grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245), with one multi-query attention
    (Shazeer 2019, arXiv:1911.02150)."""

    recordable: ClassVar[bool] = True
    n_heads: Shared[Size]
    """The number of query heads."""
    n_kv_heads: Shared[Size] = Field(default_factory=lambda data: data["n_heads"])
    """The number of key-value heads; each serves n_heads / n_kv_heads query heads."""
    head_dim: Shared[Size] = Field(default_factory=default_head_dim)
    """The width of a query and key head; d_model / n_heads by default."""
    v_head_dim: Size = Field(default_factory=lambda data: data["head_dim"])
    """The width of a value head."""
    d_out: Size = Field(default_factory=lambda data: data["out_width"] or data["d_model"])
    """The width of the output; in a block it is that of the states."""
    bias: Shared[Projections] = ALL
    """Which projections have a bias: a list of `q`, `k`, `v` and `o`, or `true` for all or `false`
    for none."""
    values: Literal["projected", "keys"] = "projected"
    """Whether values have a projection of their own (`projected`), or are the projected keys, taken
    before norm and rotation (`keys`, an option of Gemma 4)."""
    output_projection: bool = True
    """Whether a linear map follows the concatenated outputs of the heads; without it they are the
    output of the layer."""
    clip: PositiveFloatOrNone = "none"
    """A bound that projected queries, keys and values are clamped to (MPT, OLMo, DBRX)."""
    qk_norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="head_dim")] = Field(
        default_factory=lambda data: NoNorm(kind="none", width=data["head_dim"])
    )
    """The norm of queries and the norm of keys (Henry et al. 2020, arXiv:2010.04245)."""
    qk_norm_scope: Annotated[
        Literal["head", "full", "per_head"] | None, NotWith("qk_norm", "none", default="head")
    ] = UNSTATED
    """What `qk_norm` normalises: `head`, each head with the same weights; `full`, all heads of a
    position as one vector (OLMo 2); `per_head`, each head with weights of its own (StableLM 2)."""
    qk_norm_site: Annotated[
        Literal["before_rotation", "after_rotation"] | None,
        NotWith("qk_norm", "none", default="before_rotation"),
    ] = UNSTATED
    """Whether `qk_norm` is applied before or after the rotation by rotary positions."""
    v_norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="v_head_dim")] = (
        Field(default_factory=lambda data: NoNorm(kind="none", width=data["v_head_dim"]))
    )
    """The norm of each value head (Gemma 4)."""
    rotate_values: Annotated[
        bool | None,
        OnlyWith(
            "key_width",
            None,
            default=False,
            because="is about positions in one sequence, and cross-attention sees another",
        ),
    ] = UNSTATED
    """Whether rotary positions rotate the values too (an option of RoFormer)."""
    q_temperature: Literal["none", "log", "power"] = "none"
    """The factor that multiplies a query at position p, so that long contexts do not blur attention
    (Nakanishi 2025, arXiv:2501.19399): `log` is 1 + scale * log(1 + floor((p + shift) / floor))
    (Llama 4), `power` is (1 + (p + shift) / floor)**scale (Beam)."""
    q_temperature_scale: Annotated[
        PositiveFloat | None, NotWith("q_temperature", "none", default=0.1)
    ] = UNSTATED
    """`scale` in that formula."""
    q_temperature_floor: Annotated[
        PositiveFloat | None, NotWith("q_temperature", "none", default=8192.0)
    ] = UNSTATED
    """`floor` in that formula, in positions."""
    q_temperature_shift: Annotated[
        NotNegativeInt | None, NotWith("q_temperature", "none", default=0)
    ] = UNSTATED
    """`shift` in that formula: 1 in Llama 4 and Beam, 0 in Ministral 3."""
    scale: PositiveFloat = Field(default_factory=lambda data: data["head_dim"] ** -0.5)
    """The factor that multiplies the scores; 1 / sqrt(head_dim) by default."""
    softcap: PositiveFloatOrNone = "none"
    """A bound c that scores approach: c * tanh(score / c) (Gemma 2, arXiv:2408.00118)."""
    window: SizeOrNone = "none"
    """The width of a sliding window that attention within a sequence is limited to (Beltagy et al.
    2020, arXiv:2004.05150)."""
    window_sides: Annotated[
        Literal["past", "both"] | None, NotWith("window", "none", default="past")
    ] = UNSTATED
    """The sides that `window` w limits. `past`: position i attends to j only if i - j < w, so to w
    positions under a causal mask. `both`: only if |i - j| <= w, so to 2 w + 1. A stack that is not
    causal has to state it."""
    chunk: SizeOrNone = "none"
    """The number of positions in a chunk; a position attends only to its own chunk (Llama 4)."""
    global_tokens: Annotated[
        bool | Literal["first"] | None,
        OnlyWith(
            "key_width",
            None,
            default=False,
            because="is about tokens of one sequence, and cross-attention sees another",
        ),
    ] = UNSTATED
    """Whether the model accepts `global_tokens`: all tokens attend to these, whatever the `window`,
    and these attend to all tokens, with projections of their own (Beltagy et al. 2020,
    arXiv:2004.05150, section 3.1). With `first`, the first token is one in a call that names none,
    as in a Longformer that classifies texts."""
    sinks: bool = False
    """Whether each head has one more key with a learned logit and the value zero, which can take up
    attention weight (gpt-oss; Xiao et al. 2023, arXiv:2309.17453). The logits start at 0."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the attention weights."""
    masked_rows: Literal["zero", "uniform"] = "zero"
    """The weights of a query whose keys are all masked: zero, as with a mask of -inf but without
    NaN, or equal for all keys, as with a mask of -1e9."""
    v_scale: PositiveFloat = 1.0
    """The factor that multiplies the heads' outputs (MiMo-V2-Flash)."""
    output_gate: Literal["none", "sigmoid", "softplus"] = "none"
    """The activation of the gates that multiply the heads' outputs; a linear map computes them from
    the layer's input (Qiu et al. 2025, arXiv:2505.06708)."""
    output_gate_scope: Annotated[
        Literal["element", "head"] | None, NotWith("output_gate", "none", default="element")
    ] = UNSTATED
    """Whether each element of the heads' outputs has a gate, or each head."""
    output_gate_bias: Annotated[
        Literal["none", "projection", "head"] | None,
        NotWith("output_gate", "none", default="none"),
    ] = UNSTATED
    """The bias of the gates: none, a bias of their linear map, or one number per head that all its
    gates share (Beam)."""
    sub_norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="v_head_dim")] = (
        Field(default_factory=lambda data: NoNorm(kind="none", width=data["v_head_dim"]))
    )
    """The norm of all heads' outputs as one vector, before the output projection (Wang et al. 2022,
    arXiv:2210.06423; BitNet)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_default_head_dim(self, self.n_heads)
        check_divisible(n_heads=self.n_heads, n_kv_heads=self.n_kv_heads)
        if not self.output_projection and self.d_out != self.n_heads * self.v_head_dim:
            raise contradiction(
                f"without an output projection the output is n_heads * v_head_dim = "
                f"{self.n_heads * self.v_head_dim} wide, not {self.d_out}",
                "output_projection",
                "v_head_dim",
                "head_dim",
                "n_heads",
            )
        self._check_values()
        self._check_masks()
        self._check_norm_of_each_head()
        return self

    def _check_values(self) -> None:
        if self.values == "keys" and self.v_head_dim != self.head_dim:
            raise contradiction(
                f"values that are keys are head_dim = {self.head_dim} wide, not {self.v_head_dim}",
                "values",
                "v_head_dim",
            )
        if self.rotate_values and self.v_head_dim < self.head_dim:
            raise contradiction(
                f"a value head of {self.v_head_dim} is too narrow to be rotated like a key head "
                f"of {self.head_dim}",
                "rotate_values",
                "v_head_dim",
            )

    def _check_masks(self) -> None:
        limits = [name for name in ("window", "chunk") if getattr(self, name) != "none"]
        if len(limits) == 2:
            raise contradiction(
                'a layer has a `window` or a `chunk`, not both; "none" switches one off',
                "window",
                "chunk",
            )
        if limits and self.key_width is not None:
            raise contradiction(
                f"`{limits[0]}` is about distances within one sequence, and cross-attention sees "
                "another: state it under `self_attn`",
                limits[0],
            )
        if self.sinks and self.masked_rows == "uniform":
            raise contradiction(
                "with `sinks`, a query that may attend to nothing attends to its sink, not to all",
                "masked_rows",
                "sinks",
            )

    def _check_norm_of_each_head(self) -> None:
        parts = self.qk_norm.layout().parts.values()
        plain = all(isinstance(part, Tensor) and not part.buffer for part in parts)
        if self.qk_norm_scope == "per_head" and not plain:
            raise contradiction(
                f"the norm `{self.qk_norm.kind}` keeps more than parameters, which cannot be "
                "repeated for each head",
                "qk_norm_scope",
            )

    @property
    def takes_global_tokens(self) -> bool:
        return bool(self.global_tokens)

    @property
    def rotation_key(self) -> str | None:
        if self.rotate_values:
            return "rotate_values"
        return "qk_norm_site" if self.qk_norm_site == "after_rotation" else None

    @property
    def offers_keys(self) -> KeyForm | None:
        # Global tokens have keys of their own beside these.
        return None if self.key_width or self.global_tokens else self._key_form

    @property
    def _key_form(self) -> KeyForm:
        limits = ((name, getattr(self, name)) for name in ("window", "window_sides", "chunk"))
        reach = tuple(limit for limit in limits if limit[1] not in ("none", None))
        return KeyForm(self.n_kv_heads, self.head_dim, self.v_head_dim, reach)

    @property
    def past_by_default(self) -> str | None:
        is_stated = self.window == "none" or "window_sides" in self.model_fields_set
        return None if is_stated else "window_sides"

    @property
    def against_fused(self) -> str | None:
        return against_fused(sinks=bool(self.sinks), softcap=self.softcap != "none")

    @property
    def incremental(self) -> bool:
        if self.key_width is not None:
            return self.q_temperature == "none"  # it is not told the positions of its queries
        return not self.global_tokens  # a later token may see all before it, and they see it

    @property
    def past(self) -> int | None:
        """The largest number of tokens, itself included, that a token attends to if it attends to
        no later one; None if it attends to all earlier ones."""
        window = number(self.window)
        if window is None:
            return number(self.chunk)
        return window + 1 if self.window_sides == "both" else window

    def _norms(self) -> dict[str, Norm]:
        """The norms inside the attention, each for vectors of its width."""
        q, k = (self.n_heads, self.n_kv_heads) if self.qk_norm_scope == "full" else (1, 1)
        return {
            "q_norm": of_width(self.qk_norm, q * self.head_dim),
            "k_norm": of_width(self.qk_norm, k * self.head_dim),
            "v_norm": self.v_norm,
            "sub_norm": of_width(self.sub_norm, self.n_heads * self.v_head_dim),
        }

    def _norms_per_head(self) -> dict[str, int]:
        """The names of the norms with separate tensors for each head, and the numbers of heads."""
        if self.qk_norm_scope != "per_head":
            return {}
        return {"q_norm": self.n_heads, "k_norm": self.n_kv_heads}

    def _by_heads(self, cut: Cut) -> Cut | None:
        """The cut that gives each process some of the heads. None where one process needs all of
        them: for a norm over all heads, for a norm with tensors of each head, or without an output
        projection, which sums over heads."""
        norms = self._norms().values()
        apart = (
            self.output_projection
            and self.qk_norm_scope in (None, "head")
            and self.sub_norm.absent
            and not any(tensor.buffer for norm in norms for _, tensor in norm.layout().tensors())
        )
        return cut if apart else None

    @property
    def _maps(self) -> str:
        """The names of the maps to queries, keys and values."""
        return "qk" if self.values == "keys" else "qkv"

    def _projections(self) -> dict[str, Layout]:
        """The maps to queries, keys and values."""
        key_width = self.key_width or self.d_model
        q, k, v = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim, self.v_head_dim
        queries = self._by_heads(column_wise(self.n_heads))
        keys = self._by_heads(column_wise(self.n_kv_heads))
        forms = {
            "q": (self.d_model, q, queries),
            "k": (key_width, k, keys),
            "v": (key_width, self.n_kv_heads * v, keys),
        }
        return {
            f"{name}_proj": linear(n_in, n_out, bias=name in self.bias, cut=cut)
            for name, (n_in, n_out, cut) in forms.items()
            if name in self._maps
        }

    def _norm_parts(self) -> dict[str, Layout]:
        n_heads = self._norms_per_head()
        return {
            name: _repeated(norm.layout(), n_heads[name])
            if name in n_heads
            else replace(norm.layout(), cut=self._by_heads(Cut({}, inputs=-3, outputs=-3)))
            for name, norm in self._norms().items()
        }

    def _gate_parts(self) -> dict[str, Tensor | Layout]:
        if self.output_gate == "none":
            return {}
        width = self.v_head_dim if self.output_gate_scope == "element" else 1
        proj = linear(
            self.d_model,
            self.n_heads * width,
            bias=self.output_gate_bias == "projection",
            cut=self._by_heads(column_wise(self.n_heads)),
        )
        if self.output_gate_bias != "head":
            return {"gate_proj": proj}
        return {"gate_proj": proj, "gate_bias": vector(self.n_heads, "bias")}

    def _output_projection(self) -> Layout:
        return linear(
            self.n_heads * self.v_head_dim,
            self.d_out,
            bias="o" in self.bias,
            residual=True,
            cut=self._by_heads(row_wise(self.n_heads)),
        )

    def layout(self) -> Layout:
        parts: dict[str, Tensor | Layout] = {**self._projections()}
        if self.global_tokens:
            parts |= {f"global_{name}": one for name, one in self._projections().items()}
        parts |= {name: norm for name, norm in self._norm_parts().items() if norm.parts}
        if self.sinks:
            parts["sinks"] = vector(self.n_heads)
        parts |= self._gate_parts()
        if self.output_projection:
            parts["o_proj"] = self._output_projection()
        told = heads_text(self.n_heads, self.n_kv_heads, self.head_dim)
        for name, size in (("window", self.window), ("chunk", self.chunk)):
            told += "" if size == "none" else f", {name} {size}"
        cache = self.n_kv_heads * (self.head_dim + self.v_head_dim)
        return Layout(
            parts,
            told,
            cache=0 if self.key_width else cache,
            memory_cache=cache if self.key_width else 0,
            cache_window=self.past,
            cut=self._by_heads(Cut({"sinks": 0, "gate_bias": 0}, self.n_heads, by_itself=True)),
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.attention import MultiHeadAttention
        from zoo_components.modules.global_tokens import GlobalTokensAttention

        if not self.global_tokens:
            return self._module(MultiHeadAttention)
        module = self._module(GlobalTokensAttention)
        module.first_is_global = self.global_tokens == "first"
        return module

    def _module(self, cls: "type[Module]") -> "Module":
        from zoo_components.modules.attention import LinearMaps
        from zoo_components.modules.heads import Heads, PerHeadNorm, Preparation

        n_heads = self._norms_per_head()
        norms = {
            name: PerHeadNorm(norm.build(), n_heads=n_heads[name], broadcasts=norm.broadcasts)
            if name in n_heads
            else norm.build()
            for name, norm in self._norms().items()
        }
        return cls(
            Heads(self.n_heads, self.n_kv_heads, self.head_dim, self.v_head_dim),
            LinearMaps(
                d_model=self.d_model,
                key_width=self.key_width or self.d_model,
                d_out=self.d_out,
                names=f"{self._maps}o" if self.output_projection else self._maps,
                bias=self.bias,
            ),
            norms=norms,
            preparation=Preparation(
                clip=number(self.clip),
                norm_spans_heads=self.qk_norm_scope == "full",
                norm_after_rotation=self.qk_norm_site == "after_rotation",
                rotate_values=bool(self.rotate_values),
                temperature=temperature_of(self),
            ),
            reach=self._reach(),
            scoring=self._scoring(),
            sinks=self.sinks,
            v_scale=self.v_scale,
            gate=self._gate(),
        )

    def _reach(self) -> "Reach | None":
        from zoo_components.modules.masks import Reach

        if self.past is None:
            return None
        return Reach(
            past=self.past,
            window=number(self.window),
            sides=self.window_sides or "past",
            chunk=number(self.chunk),
        )

    def _scoring(self) -> "Scoring":
        from zoo_components.modules.scores import Scoring

        return Scoring(
            scale=self.scale,
            softcap=number(self.softcap),
            dropout=self.dropout,
            uniform_masked_rows=self.masked_rows == "uniform",
        )

    def _gate(self) -> "Gate | None":
        from zoo_components.modules.heads import Gate

        if self.output_gate == "none":
            return None
        return Gate(
            activation=self.output_gate,
            per_head=self.output_gate_scope == "head",
            bias=stated(self.output_gate_bias),
        )


def _repeated(layout: Layout, n_heads: int) -> Layout:
    """A norm's layout with tensors of their own for each head."""
    tensors = layout.tensors()
    return Layout({name: replace(t, shape=(n_heads, *t.shape)) for name, t in tensors})
