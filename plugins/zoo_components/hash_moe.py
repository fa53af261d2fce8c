"""Mixtures of experts that are chosen by the ids of tokens, in the `ffn` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import model_validator

from zoo.component import Given, Part, missing_dimension
from zoo.layout import Layout, Tensor
from zoo.only_with import stated
from zoo_components.moe import MixtureOfExperts, Router

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.routing import Router as RouterModule


class HashRouter(Router):
    """Weighs the `top_k` experts of each token, which a table has for each id of the vocabulary, by
    the logits of a linear map."""

    # No fields: nothing is chosen by scores.
    correction_bias: ClassVar[bool] = False  # type: ignore[misc]
    n_groups: ClassVar[int] = 1  # type: ignore[misc]
    top_groups: ClassVar[int] = 1  # type: ignore[misc]
    group_score: ClassVar[None] = None  # type: ignore[misc]
    vocab: Given[int | None] = None

    @model_validator(mode="after")
    def _check_vocab(self) -> Self:
        if self.vocab is None:
            raise missing_dimension("vocab")
        return self

    def layout(self) -> Layout:
        shape = stated(self.vocab), self.top_k
        table = Tensor(shape, "cycle", value=self.n_experts, buffer=True, dtype="int64")
        return super().layout().with_parts(experts_of_ids=table)

    def build(self) -> "RouterModule":
        from zoo_components.modules.hash_moe import HashRouter as Module

        router = self._module(Module)
        router.add_table(stated(self.vocab))
        return router


class HashMixtureOfExperts(MixtureOfExperts):
    """The mixture of experts `moe`, in which the id of a token, and not what the router sees of it,
    decides which experts it is sent to (hash layers: Roller et al. 2021, arXiv:2106.04426); the
    router weighs them (DeepSeek-V4). The table of the experts of each id is not learned; in a new
    model, they are assigned in turn, so that all experts have equally many ids."""

    example: ClassVar[Mapping[str, Any]] = {"n_experts": 4, "top_k": 2}
    router: Annotated[HashRouter, Part()]

    @property
    def takes_ids(self) -> bool:
        return True

    def build(self) -> "nn.Module":
        from zoo_components.modules.hash_moe import HashMixtureOfExperts as Module

        return self._module(Module)
