"""Mixtures of experts, in the `ffn` slot."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from zoo.component import (
    Component,
    Given,
    Part,
    PositiveFloat,
    Probability,
    Shared,
    Size,
    contradiction,
)
from zoo.layout import Cut, Layout, Role, Tensor, column_wise, linear, row_wise
from zoo.only_with import UNSTATED, OnlyWith, stated
from zoo.slots import FeedForward
from zoo_components.activation import Activated, Activation
from zoo_components.heads import check_divisible

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.moe import MixtureOfExperts as MixtureModule
    from zoo_components.modules.routing import Router as RouterModule

RouterKind = TypeVar("RouterKind", bound="RouterModule")
MixtureKind = TypeVar("MixtureKind", bound="MixtureModule")
NotNegativeFloat = Annotated[float, Field(ge=0.0)]


class Router(Component):
    """Chooses the `top_k` experts of each token and their weights, from the logits of a linear
    map."""

    d_model: Given[int]
    n_experts: Given[int]
    top_k: Given[int]
    score: Literal[
        "softmax", "sigmoid", "sqrt_softplus", "topk_softmax", "topk_sigmoid", "sparsemixer"
    ] = "softmax"
    """The function from logits to weights. `softmax` over all experts (Fedus et al. 2021,
    arXiv:2101.03961), `sigmoid` (DeepSeek-V3) and `sqrt_softplus`, sqrt(log(1 + exp(logit)))
    (DeepSeek-V4), come before the choice, `topk_softmax` (Shazeer et al. 2017, arXiv:1701.06538)
    and `topk_sigmoid` after it, of the chosen logits alone.
    `sparsemixer` is the deterministic part of SparseMixer-v2 (Liu et al. 2024, arXiv:2409.12136),
    in training too."""
    threshold: Annotated[PositiveFloat | None, OnlyWith("score", "sparsemixer", default=0.01)] = (
        UNSTATED
    )
    """With `sparsemixer`: half the largest relative distance from the chosen logit at which others
    take part in its softmax; 0.01 by default."""
    softcap: PositiveFloat | None = None
    """A bound that the logits approach: softcap * tanh(logits / softcap)."""
    bias: bool = False
    """Whether the linear map has a bias."""
    correction_bias: bool = False
    """Whether each expert has a number that is added to its score for the choice alone. It is a
    buffer, not a parameter: a training loop adjusts it to balance the load (Wang et al. 2024,
    arXiv:2408.15664). `zoo train` does not change it."""
    n_groups: Size = 1
    """The number of groups of equal size that the experts are divided into (DeepSeek-AI 2024,
    arXiv:2405.04434)."""
    top_groups: Size = Field(default_factory=lambda data: data["n_groups"])
    """The number of groups that a token's experts are chosen from; all by default."""
    group_score: Literal["max", "top2"] | None = Field(
        default_factory=lambda data: "max" if data["top_groups"] < data["n_groups"] else None
    )
    """The score of a group, if not all groups are chosen: the score of its best expert (`max`, the
    default; DeepSeek-V2), or the sum of the best two (`top2`; DeepSeek-V3)."""
    normalize: bool = False
    """Whether the weights of the chosen experts are divided by their norm."""
    normalize_order: Annotated[PositiveFloat | None, OnlyWith("normalize", True, default=1.0)] = (
        UNSTATED
    )
    """With `normalize`: the order of that norm; with the default, 1, the weights sum to 1."""
    normalize_eps: Annotated[NotNegativeFloat | None, OnlyWith("normalize", True, default=0.0)] = (
        UNSTATED
    )
    """With `normalize`: a number that is added to the norm; 0 by default."""
    normalize_min: Annotated[NotNegativeFloat | None, OnlyWith("normalize", True, default=0.0)] = (
        UNSTATED
    )
    """With `normalize`: a lower bound of the divisor; 0 by default."""
    scale: PositiveFloat = 1.0
    """The factor that multiplies the final weights."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.n_experts:
            raise contradiction(
                f"top_k = {self.top_k} experts cannot be chosen from n_experts = {self.n_experts}",
                "top_k",
                "n_experts",
            )
        check_divisible(n_experts=self.n_experts, n_groups=self.n_groups)
        each = self.n_experts // self.n_groups
        if self.top_groups > self.n_groups:
            raise contradiction(
                f"top_groups = {self.top_groups} cannot be chosen from n_groups = {self.n_groups}",
                "top_groups",
                "n_groups",
            )
        if self.top_k > self.top_groups * each:
            raise contradiction(
                f"top_k = {self.top_k} experts cannot be chosen from top_groups = "
                f"{self.top_groups} groups of {each}",
                "top_groups",
                "top_k",
            )
        if self.top_groups == self.n_groups:
            self._check_no_groups()
        if self.group_score == "top2" and self.n_groups == self.n_experts:
            raise contradiction(
                '`group_score = "top2"` needs groups of two experts or more',
                "group_score",
                "n_groups",
            )
        return self

    def _check_no_groups(self) -> None:
        for key, idle in (("n_groups", self.n_groups > 1), ("group_score", bool(self.group_score))):
            if idle:
                raise contradiction(
                    f"`{key}` changes nothing where experts of all groups may be chosen: state a "
                    "smaller `top_groups`",
                    key,
                    "top_groups",
                )

    def layout(self) -> Layout:
        parts = dict(linear(self.d_model, self.n_experts, bias=self.bias).parts)
        if self.correction_bias:
            parts["correction_bias"] = Tensor((self.n_experts,), "constant", buffer=True)
        return Layout(parts, self.score)

    def build(self) -> "RouterModule":
        from zoo_components.modules.routing import Router as Module

        return self._module(Module)

    def _module(self, cls: "type[RouterKind]") -> "RouterKind":
        from zoo_components.modules.routing import Groups, Normalization

        groups = normalize = None
        if self.top_groups < self.n_groups:
            best = 2 if self.group_score == "top2" else 1
            groups = Groups(self.n_groups, self.top_groups, best)
        if self.normalize:
            order, eps = stated(self.normalize_order), stated(self.normalize_eps)
            normalize = Normalization(order, eps, least=stated(self.normalize_min))
        return cls(
            d_model=self.d_model,
            n_experts=self.n_experts,
            top_k=self.top_k,
            score=self.score,
            threshold=self.threshold,
            softcap=self.softcap,
            bias=self.bias,
            correction_bias=self.correction_bias,
            groups=groups,
            normalize=normalize,
            scale=self.scale,
        )


class MixtureOfExperts(Activated, FeedForward):
    """A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): the sum of the outputs of the
    feed-forward networks that a router chooses for each token, weighted by the router, and of one
    that sees every token if there is a shared expert (Dai et al. 2024, arXiv:2401.06066). Only the
    chosen experts are computed, and no token is dropped."""

    example: ClassVar[Mapping[str, Any]] = {"n_experts": 4, "top_k": 2}

    n_experts: Size
    """The number of experts, without the shared one."""
    top_k: Size
    """The number of experts that are chosen for each token."""
    d_ff: Shared[Size]
    """The inner width of an expert."""
    d_latent: Size | None = None
    """The width of what the experts read and write, between a linear map from d_model and one back
    (Elango et al. 2026, arXiv:2601.18089); by default, that is d_model, without those maps. The
    router and the shared expert read what comes before."""
    expert: Literal["glu", "mlp", "clamped_glu", "clipped_glu"] = "glu"
    """The form of an expert: as the `ffn` kinds `glu` and `mlp`; `clamped_glu` is
    down(activation(min(gate(x), limit)) * (clamp(up(x), -limit, limit) + 1)) (gpt-oss, with the
    activation `gelu_quick`), and `clipped_glu` the same without that 1 (DeepSeek-V4)."""
    limit: Annotated[
        PositiveFloat | None, OnlyWith("expert", "clamped_glu", "clipped_glu", default=7.0)
    ] = UNSTATED
    """With `clamped_glu` and `clipped_glu`: the bound `limit` in the formula; 7 by default."""
    activation: Activation = "silu"
    """The activation of an expert."""
    bias: Shared[bool] = True
    """Whether the maps of the experts, shared ones too, have biases."""
    dropout: Shared[Probability] = 0.0
    """Dropout inside the experts, before the last map."""
    router: Annotated[Router, Part()]
    """How the experts of a token are chosen and weighted."""
    weighted: Literal["outputs", "inputs"] = "outputs"
    """Whether the router's weights multiply the outputs of the experts or their inputs (Llama
    4)."""
    shared_d_ff: Size | None = None
    """The inner width of a shared expert; by default there is none. Several shared experts are the
    same as one with the sum of their widths."""
    shared_gate: bool = False
    """Whether the shared expert's output is multiplied by the sigmoid of a linear map to one
    number (Qwen1.5-MoE)."""
    shared_average: bool = False
    """Whether the sum with the shared expert's output is halved (Cohere 2 MoE)."""
    auxiliary_loss: NotNegativeFloat = 0.0
    """The coefficient of the load-balancing loss of Fedus et al. (2021, arXiv:2101.03961), in which
    padding does not count; for layers with the same weights, it is the loss of the last. `zoo
    train` adds it to the loss; a training loop of your own adds `zoo.auxiliary_loss(model)`."""

    @property
    def takes_mask(self) -> bool:
        return self.auxiliary_loss > 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("shared_gate", "shared_average"):
            if getattr(self, key) and self.shared_d_ff is None:
                raise contradiction(
                    f"`{key}` speaks of a shared expert, which needs a `shared_d_ff`", key
                )
        return self

    def layout(self) -> Layout:
        parts: dict[str, Layout] = {
            "router": self.router.layout(),
            "experts": self._expert_layout(
                self._stacked,
                self.d_latent or self.d_model,
                self.d_ff,
                Cut({"weight": 1, "bias": 1}, self.d_ff, by_itself=True),
                Cut({"weight": 2}, self.d_ff, by_itself=True),
                residual=self.d_latent is None,
            ),
        }
        if self.d_latent is not None:
            parts["in_proj"] = linear(self.d_model, self.d_latent, bias=self.bias)
            parts["out_proj"] = linear(self.d_latent, self.d_model, bias=self.bias, residual=True)
        label = (
            f"{self.top_k} of {self.n_experts} experts, {self.expert} {self.activation}, "
            f"d_ff {self.d_ff}"
        )
        label += "" if self.d_latent is None else f", d_latent {self.d_latent}"
        if self.shared_d_ff is not None:
            one = partial(linear, bias=self.bias)
            inner, outer = column_wise(self.shared_d_ff), row_wise(self.shared_d_ff)
            parts["shared"] = self._expert_layout(
                one, self.d_model, self.shared_d_ff, inner, outer, residual=True
            )
            label += f", shared {self.shared_d_ff}"
            if self.shared_gate:
                parts["shared_gate"] = linear(self.d_model, 1, bias=False)
        return Layout(parts, label)

    def _expert_layout(
        self,
        one_map: Callable[..., Layout],
        width: int,
        d_ff: int,
        inner: Cut,
        outer: Cut,
        *,
        residual: bool,
    ) -> Layout:
        """The layout of an expert from `width` to `width` whose maps' layouts `one_map` makes;
        `inner` and `outer` are the cuts of those to its hidden units and from them, and `residual`
        says whether what it writes is added to the residual stream as it is."""
        learned = self.activation_parts()
        to, back = (None, None) if learned else (inner, outer)
        gate = {} if self.expert == "mlp" else {"gate_proj": one_map(width, d_ff, cut=to)}
        return Layout(
            {
                **gate,
                **learned,
                "up_proj": one_map(width, d_ff, cut=to),
                "down_proj": one_map(d_ff, width, residual=residual, cut=back),
            }
        )

    def _stacked(
        self, n_in: int, n_out: int, *, residual: bool = False, cut: Cut | None = None
    ) -> Layout:
        """The layout of one stacked map of all experts; each expert is initialised as a single
        map."""
        role: Role = "residual" if residual else "weight"
        shape = (self.n_experts, n_out)
        idle = (self.n_experts - self.top_k) * n_out
        weight = Tensor((*shape, n_in), role, fan_in=n_in, fan_out=n_out, idle=idle * n_in)
        parts = {"weight": weight}
        if self.bias:
            parts["bias"] = Tensor(shape, "bias", fan_in=n_in, fan_out=n_out, idle=idle)
        return Layout(parts, cut=cut)

    def build(self) -> "nn.Module":
        from zoo_components.modules.moe import MixtureOfExperts as Module

        return self._module(Module)

    def _module(self, cls: "type[MixtureKind]") -> "MixtureKind":
        from zoo.linear import Linear
        from zoo_components.modules.experts import Expert, GroupedLinear

        def expert(linear: "Callable[..., nn.Module]", width: int, d_ff: int) -> Expert:
            return Expert(
                linear,
                d_model=width,
                d_ff=d_ff,
                form=self.expert,
                activation=self.build_activation(),
                limit=self.limit,
                dropout=self.dropout,
            )

        shared = shared_gate = None
        if self.shared_d_ff is not None:
            shared = expert(partial(Linear, bias=self.bias), self.d_model, self.shared_d_ff)
            shared_gate = Linear(self.d_model, 1, bias=False) if self.shared_gate else None
        stacked = partial(GroupedLinear, self.n_experts, bias=self.bias)
        in_proj = out_proj = None
        if self.d_latent is not None:
            in_proj = Linear(self.d_model, self.d_latent, bias=self.bias)
            out_proj = Linear(self.d_latent, self.d_model, bias=self.bias)
        return cls(
            router=self.router.build(),
            experts=expert(stacked, self.d_latent or self.d_model, self.d_ff),
            in_proj=in_proj,
            out_proj=out_proj,
            weigh_inputs=self.weighted == "inputs",
            shared=shared,
            shared_gate=shared_gate,
            average_shared=self.shared_average,
            auxiliary_loss=self.auxiliary_loss,
        )
