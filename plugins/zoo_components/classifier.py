"""Heads that classify tokens or sequences, or pool a sequence to a vector: the `head` slot."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Probability, Shared, Size, Slot, contradiction
from zoo.layout import Layout, linear
from zoo.only_with import UNSTATED, NotWith
from zoo.purpose import Classes, Task
from zoo.slots import Head, Norm

if TYPE_CHECKING:
    from torch import nn

Pooling = Literal[
    "first",
    "first_two",
    "last",
    "mean",
    "mean_after_first",
    "mean_sqrt",
    "weighted_mean",
    "max",
]
"""The vector of a sequence: the state of its first position; the mean of those of its first two (of
a class token and a distillation token); the state of its last token that is not padding; of the
states of all n that are not, the mean, the mean without the first position (that of the patches of
an image after a class token), the sum over sqrt(n), the mean weighted by their place in the
sequence, from 1, or the largest of each element."""

Dense = Literal["none", "tanh", "relu", "gelu", "gelu_tanh", "silu"]
"""The activation of a dense layer before the output, if there is one."""

Label = Annotated[str, Field(min_length=1)]


class StateScores(Head):
    """Base of the heads that score a few classes from states: out(dropout(norm(dense(x))))."""

    reads_vocab: ClassVar[bool] = False
    n_classes: Size
    """The number of classes."""
    dense: Dense = "none"
    """The activation of a dense layer of width d_model before the output; with `none` there is no
    such layer."""
    dense_bias: Annotated[bool | None, NotWith("dense", "none", default=True)] = UNSTATED
    """With a dense layer: whether it has a bias."""
    norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="d_model")]
    """A norm before the output (ModernBERT)."""
    dropout: Shared[Probability] = 0.0
    """Dropout before the output."""
    bias: bool = True
    """Whether the map to the classes has a bias."""

    def layout(self) -> Layout:
        parts: dict[str, Layout] = {}
        if self.dense != "none":
            parts["dense"] = linear(self.d_model, self.d_model, bias=bool(self.dense_bias))
        parts["norm"] = self.norm.layout()
        parts["out"] = linear(self.d_model, self.n_classes, bias=self.bias)
        return Layout(parts, f"n_classes {self.n_classes}")

    def build(self) -> "nn.Module":
        return self._build(pooling=None)

    def _build(self, *, pooling: Pooling | None) -> "nn.Module":
        from zoo.linear import Linear
        from zoo_components.modules.activation import make_activation
        from zoo_components.modules.classifier import Classifier as Module

        dense = None
        if self.dense != "none":
            dense = Linear(self.d_model, self.d_model, bias=bool(self.dense_bias))
        return Module(
            d_model=self.d_model,
            n_classes=self.n_classes,
            pooling=pooling,
            dense=dense,
            activation=make_activation(self.dense),
            norm=self.norm.build(),
            dropout=self.dropout,
            bias=self.bias,
        )


class Labelling(StateScores):
    """Base of the heads whose classes can have names."""

    labels: Annotated[tuple[Label, ...], Field(min_length=1)] | None = None
    """The names of the classes, in the order of their numbers; training by a recipe states them."""

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.labels is not None and len(self.labels) != self.n_classes:
            raise contradiction(
                f"there are {len(self.labels)} labels for n_classes = {self.n_classes}",
                "labels",
                "n_classes",
            )
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise contradiction("two labels are the same", "labels")
        return self

    @property
    def task(self) -> Task:
        return "classify"

    def labelled(self, labels: tuple[str, ...] | None) -> Self:
        return self.model_copy(update={"labels": labels})


class TokenClassifier(Labelling):
    """Scores of classes for each token (Devlin et al. 2018, arXiv:1810.04805, section 5.3):
    out(dropout(x)), with or without a dense layer before."""

    @property
    def classes(self) -> Classes:
        return Classes(self.n_classes, self.labels, each_token=True)


class Span(StateScores):
    """Scores of each token as the first and as the last of an answer (Devlin et al. 2018,
    arXiv:1810.04805, section 4.2): out(dropout(x)), with or without a dense layer before."""

    n_classes: ClassVar[int] = 2  # type: ignore[misc]  # no field: the beginning, and the end

    @property
    def task(self) -> Task:
        return "answer"


class Classifier(Labelling):
    """Scores of classes for each sequence (Devlin et al. 2018, arXiv:1810.04805, section 4.1):
    out(dropout(tanh(dense(pool(x)))))."""

    pools: ClassVar[bool] = True
    dense: Dense = "tanh"
    problem_type: Literal["multi_label_classification", "regression"] | None = None
    """What the scores are, if not those of classes of which one is right: those of classes of which
    any number may be (`multi_label_classification`), or numbers that are themselves asked for
    (`regression`)."""
    pooling: Pooling = "first"
    """How the states become the vector that is classified: the state of the first position (BERT),
    of the last token that is not padding (GPT), or a pooling over all tokens that are not
    padding."""

    @property
    def classes(self) -> Classes:
        return Classes(self.n_classes, self.labels, problem_type=self.problem_type)

    def labelled(self, labels: tuple[str, ...] | None) -> Self:
        kept = self.problem_type if labels is not None else None
        return self.model_copy(update={"labels": labels, "problem_type": kept})

    def build(self) -> "nn.Module":
        return self._build(pooling=self.pooling)


class OfClasses(Head):
    """What heads have in common that score a few classes for each sequence, without names."""

    reads_vocab: ClassVar[bool] = False
    pools: ClassVar[bool] = True
    n_classes: Size
    """The number of classes."""

    @property
    def task(self) -> Task:
        return "classify"


class ProjectedClassifier(OfClasses):
    """Scores of classes for each sequence, such as a sound, from the mean of narrow vectors:
    out(mean(dense(x))), over all positions that are not padding (SUPERB: Yang et al. 2021,
    arXiv:2105.01051)."""

    d_hidden: Size = 256
    """The width of the vectors whose mean is classified."""

    def layout(self) -> Layout:
        parts = {
            "dense": linear(self.d_model, self.d_hidden),
            "out": linear(self.d_hidden, self.n_classes),
        }
        return Layout(parts, f"n_classes {self.n_classes}")

    def build(self) -> "nn.Module":
        from zoo_components.modules.classifier import ProjectedClassifier as Module

        return Module(d_model=self.d_model, d_hidden=self.d_hidden, n_classes=self.n_classes)


class OfVectors(Head):
    """What heads have in common that make a vector for each sequence."""

    # Of a head that takes ids, the stack reads them too.
    reads_vocab: ClassVar[bool] = False
    pools: ClassVar[bool] = True

    @property
    def vector_width(self) -> int:
        return self.d_model

    @property
    def task(self) -> Task:
        return "embed"


class Pooler(OfVectors):
    """A vector for each sequence (Devlin et al. 2018, arXiv:1810.04805): tanh(dense(pool(x)))."""

    pooling: Pooling = "first"
    """How the states become the input of the dense layer: the state of the first position (BERT),
    of the last token that is not padding, or a pooling over all tokens that are not padding."""
    activation: Literal["tanh", "relu", "gelu", "none"] = "tanh"
    """The activation after the dense layer."""

    def layout(self) -> Layout:
        return linear(self.d_model, self.d_model)

    def build(self) -> "nn.Module":
        from zoo_components.modules.activation import make_activation
        from zoo_components.modules.classifier import Pooler as Module

        return Module(
            d_model=self.d_model,
            pooling=self.pooling,
            activation=make_activation(self.activation),
        )
