"""Attention and a mixer with a state side by side: the `attention` slot."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from zoo.component import Given, Slot, contradiction
from zoo.layout import Layout
from zoo.slots import Attention, KeyForm, NormPlacement
from zoo_components.block import check_width
from zoo_components.self_attention import WithinSequence

if TYPE_CHECKING:
    from torch import nn


class ParallelHybrid(WithinSequence):
    """Attention and a mixer with a state side by side, as in each layer of Falcon-H1 (Zuo et al.
    2025, arXiv:2507.22448): both read the same x, and their outputs are added. Each may have a
    `residual_scale` and `norms` of its own, `pre` and `post`, beside the norms of the whole.
    Position schemes are for the attention. Generation keeps keys and values, and states."""

    # No field: what each of the two adds to the residual sum is scaled by itself.
    residual_scale: ClassVar[float] = 1.0  # type: ignore[misc]
    # Only a field can be passed on, and no parent states this one.
    inner_placement: Given[NormPlacement] = "none"
    attention: Annotated[
        Attention,
        Slot("attention", default="multi_head", inherit=False, norm_placement="inner_placement"),
    ]
    """The attention, which keeps something of each token."""
    recurrence: Annotated[
        Attention,
        Slot("attention", default="mamba2", inherit=False, norm_placement="inner_placement"),
    ]
    """The mixer beside it, which keeps a state of fixed size."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, branch in self._branches().items():
            if branch.absent:
                raise contradiction(
                    "what is side by side is two: state the other one alone as the attention",
                    f"{name}.kind",
                )
            if "out" in branch.norms:
                raise contradiction(
                    f"both are added to one sum: `{name}` cannot have a norm after its own",
                    f"{name}.norms",
                )
            if branch.skip_scale != self.skip_scale:
                raise contradiction(
                    "both are added to one sum, and so have one `skip_scale`",
                    f"{name}.skip_scale",
                    "skip_scale",
                )
            check_width(name, branch, self.d_model)
        self._check_kept()
        return self

    def _check_kept(self) -> None:
        """Raise a contradiction if one of the two keeps what the other one is for: they have one
        cache, with room for one state."""
        if self.attention.layout().state_per_sequence:
            raise contradiction(
                f"`{self.attention.kind}` has a state, and `attention` is what keeps each token: "
                "state it as `recurrence`",
                "attention.kind",
            )
        if self.recurrence.layout().cache_per_token:
            raise contradiction(
                f"`{self.recurrence.kind}` keeps each token, and `recurrence` is what has a state: "
                "state it as `attention`",
                "recurrence.kind",
            )
        if self.recurrence.reads is not None or self.recurrence.needs_keys is not None:
            raise contradiction(
                f"`{self.recurrence.kind}` reads what the stack has for attention: state it as "
                "`attention`",
                "recurrence.kind",
            )

    def _branches(self) -> dict[str, Attention]:
        return {"attention": self.attention, "recurrence": self.recurrence}

    @property
    def n_heads(self) -> int | None:
        """The number of heads that position schemes are made for."""
        return getattr(self.attention, "n_heads", None)

    @property
    def head_dim(self) -> int | None:
        """The width of these heads."""
        return getattr(self.attention, "head_dim", None)

    @property
    def recordable(self) -> bool:  # type: ignore[override]
        return self.attention.recordable and self.recurrence.recordable

    @property
    def reads(self) -> str | None:  # type: ignore[override]
        return self.attention.reads

    @property
    def rotates_elsewhere(self) -> bool:  # type: ignore[override]
        return self.attention.rotates_elsewhere

    @property
    def axes(self) -> int:
        return self.attention.axes

    @property
    def takes_global_tokens(self) -> bool:
        return self.attention.takes_global_tokens

    @property
    def rotation_key(self) -> str | None:
        key = self.attention.rotation_key
        return None if key is None else f"attention.{key}"

    @property
    def offers_keys(self) -> KeyForm | Literal["chosen"] | None:
        return self.attention.offers_keys

    @property
    def needs_keys(self) -> KeyForm | Literal["chosen"] | None:
        return self.attention.needs_keys

    @property
    def past_by_default(self) -> str | None:
        key = self.attention.past_by_default
        return None if key is None else f"attention.{key}"

    @property
    def takes_rotation(self) -> bool:
        return self.attention.takes_rotation

    @property
    def takes_bias(self) -> bool:
        return self.attention.takes_bias

    @property
    def only_causal(self) -> bool:
        return self.attention.only_causal or self.recurrence.only_causal

    @property
    def longest(self) -> int | None:
        limits = [one.longest for one in self._branches().values() if one.longest is not None]
        return min(limits, default=None)

    @property
    def looks_ahead(self) -> bool:
        return self.attention.looks_ahead or self.recurrence.looks_ahead

    @property
    def against_fused(self) -> str | None:
        return self.attention.against_fused

    @property
    def incremental(self) -> bool:
        return self.attention.incremental and self.recurrence.incremental

    def layout(self) -> Layout:
        return Layout({name: one.layout_with_norms() for name, one in self._branches().items()})

    def build(self) -> "nn.Module":
        from zoo_components.modules.block import with_norms
        from zoo_components.modules.parallel_hybrid import ParallelHybrid as Module

        scales = {name: branch.residual_scale for name, branch in self._branches().items()}
        return Module(with_norms(self.attention), with_norms(self.recurrence), scales=scales)
