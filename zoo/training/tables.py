"""The tables of a recipe, each a frozen pydantic model with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from zoo.component import PositiveFloat, Probability, Size, contradiction
from zoo.toml.format import Format

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]
Column = Annotated[int, Field(ge=1)]
HeldOut = Annotated[int, Field(ge=0)] | str
"""What is held out: a number of source sentences of the training data, or a file of its own."""


class Table(BaseModel):
    """What all tables have in common: nothing is converted, nothing is unknown."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


class Head(Table):
    """What stands above the first table."""

    format: Format
    """The version of this format."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """What the run is called, and its folder unless `-o` names another. The model keeps the name
    in its spec."""
    model: str
    """What is trained: a spec file in the recipe's folder, a named model, or a saved model, whose
    weights then are the start."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Decides the initial weights, the order of the data, the held-out parts and dropout."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """The dtype of the saved weights, which are trained in float32."""


class Parts(Table):
    """What all tables of data have in common: what the loss is measured on while training
    is not learned from. The test data may be, to see what a model has learned by heart."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        parts = dict(self)
        if parts["valid"] == parts["train"]:
            raise contradiction("`valid` is the training data: nothing is held out", "valid")
        return self


class Tsv(Parts):
    """Pairs, one on each line, in columns with a tab between."""

    train: str
    """The file with the training data."""
    source: Column = 1
    """The column of the source, from 1."""
    target: Column = 2
    """The column of the target, from 1."""
    header: bool = False
    """Whether the first line names the columns."""
    valid: HeldOut = 0
    """What the loss is measured on while training: a number of source sentences, which are taken
    out of the training data, or a file."""
    test: HeldOut = 0
    """What the result is measured on, likewise."""

    @model_validator(mode="after")
    def _check(self) -> Tsv:
        if self.source == self.target:
            raise contradiction("source and target are the same column", "source", "target")
        return self


class Files(Table):
    """Two files; the same line of both is a pair."""

    source: str
    """The file with the sources."""
    target: str
    """The file with the targets."""


class Parallel(Parts):
    """Pairs in two files, whose lines belong together."""

    train: Files
    """The two files with the training data."""
    valid: Count | Files = 0
    """What the loss is measured on while training: a number of source sentences, which are taken
    out of the training data, or two files."""
    test: Count | Files = 0
    """What the result is measured on, likewise."""


class Text(Parts):
    """Text, each line an example of its own, for models that continue it."""

    train: str
    """The file with the training data."""
    valid: HeldOut = 0
    """What the loss is measured on while training: a number of lines, which are taken out of the
    training data, or a file."""
    test: HeldOut = 0
    """What the result is measured on, likewise."""


class Datasets(Parts):
    """Pairs, or text, of a data set that the `datasets` package loads."""

    path: str
    """What `datasets.load_dataset` takes: a folder of files, or a name on the Hugging Face Hub."""
    revision: str | None = None
    """The revision on the Hub; state it, so that the data stays the same."""
    train: str = "train"
    """The split with the training data."""
    source: str | None = None
    """The field of the source, with dots into nested ones (`translation.de`); none for text."""
    target: str
    """The field of the target, or of the text."""
    valid: HeldOut = 0
    """What the loss is measured on while training: a number of source sentences, which are taken
    out of the training data, or a split."""
    test: HeldOut = 0
    """What the result is measured on, likewise."""


Data = Tsv | Parallel | Text | Datasets
DATA: Mapping[str, type[Table]] = {
    "tsv": Tsv,
    "parallel": Parallel,
    "text": Text,
    "datasets": Datasets,
}


class Specials(Table):
    """Which tokens have a meaning for the model."""

    pad: str = "<pad>"
    """Fills short sequences."""
    bos: str = "<s>"
    """Begins each target, or text."""
    eos: str = "</s>"
    """Ends each target, or text."""

    @model_validator(mode="after")
    def _check(self) -> Specials:
        if len({self.pad, self.bos, self.eos}) < 3:
            raise contradiction("pad, bos and eos are three tokens", "pad", "bos", "eos")
        return self


class Bpe(Specials):
    """Byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909), learned from the
    training data. How many tokens there are, the model's spec says."""

    shared: bool = True
    """Whether source and target have one vocabulary."""


class TokenizerFiles(Specials):
    """Tokenizers that exist, as `tokenizers` saves them."""

    source: str
    """The file for sources; of text models, for the text, and its own template puts `bos` before
    one: that is what `zoo run` continues."""
    target: str | None = None
    """The file for targets, if it is another one."""


class OfModel(Specials):
    """The tokenizers beside the saved model that training starts from."""


Tokenizer = Bpe | TokenizerFiles | OfModel
TOKENIZERS: Mapping[str, type[Table]] = {"bpe": Bpe, "files": TokenizerFiles, "of_model": OfModel}


class Adam(Table):
    """Adam (Kingma and Ba 2014, arXiv:1412.6980)."""

    lr: PositiveFloat
    """The learning rate at the schedule's peak."""
    betas: Annotated[tuple[Probability, Probability], Field(strict=False)] = (0.9, 0.98)
    """How much of the running means of the gradient and of its square stays in each step."""
    eps: PositiveFloat = 1e-9
    """Added to the root of the mean square that a step is divided by."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """This times the weights is added to their gradients (L2 regularisation)."""


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv:1711.05101). Biases and
    the weights of norms do not decay."""

    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """The share of the weights, times the learning rate, that is taken off them in each step."""


class Sgd(Table):
    """Stochastic gradient descent with momentum."""

    lr: PositiveFloat
    """The learning rate at the schedule's peak."""
    momentum: Probability = 0.0
    """The share of the last step that the next one keeps."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """This times the weights is added to their gradients (L2 regularisation)."""


Optimizer = AdamW | Adam | Sgd
OPTIMIZERS: Mapping[str, type[Table]] = {"adamw": AdamW, "adam": Adam, "sgd": Sgd}


class Warmup(Table):
    """What all schedules begin with."""

    warmup: Count = 0
    """Over how many steps the learning rate grows from 0 to its peak."""


class Constant(Warmup):
    """The peak to the end."""


class InverseSqrt(Warmup):
    """As the inverse square root of the step: the paper's schedule (Vaswani et al. 2017, section
    5.3), whose peak is `d_model**-0.5 * warmup**-0.5`."""

    warmup: Size
    """Over how many steps the learning rate grows from 0 to its peak."""


class Linear(Warmup):
    """In a straight line to `final`."""

    final: Share = 0.0
    """What is left of the peak at the last step."""


class Cosine(Warmup):
    """Along half a cosine to `final` (Loshchilov and Hutter 2016, arXiv:1608.03983)."""

    final: Share = 0.0
    """What is left of the peak at the last step."""


Schedule = Constant | InverseSqrt | Linear | Cosine
SCHEDULES: Mapping[str, type[Table]] = {
    "constant": Constant,
    "inverse_sqrt": InverseSqrt,
    "linear": Linear,
    "cosine": Cosine,
}


class Training(Table):
    """How long, in which batches, and what is kept."""

    steps: Size
    """Updates of the weights."""
    batch_tokens: Size = 4096
    """Tokens of a batch, padding included, on its longer side: of one update over all processes. A
    longer example is a batch of its own."""
    accumulate: Size = 1
    """Into how many parts a batch is cut to need less memory. The update stays the same."""
    max_length: Annotated[int, Field(ge=2)] = 256
    """Tokens of a sequence. Longer pairs are left out of training; longer text is cut into pieces;
    translations and what is to be translated are cut off."""
    label_smoothing: Probability = 0.0
    """The share of a target's probability that goes to all tokens evenly (Szegedy et al. 2015,
    arXiv:1512.00567)."""
    clip_norm: PositiveFloat | None = None
    """The most that the norm of all gradients together may be."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the arithmetic, by autocast; weights and optimiser stay in float32."""
    shard: bool = False
    """Whether several processes share the weights among them (FSDP2) and not each has them all."""
    log_every: Size = 50
    """Steps between two lines of the log, and points of the plot; each measurement and checkpoint
    has one too."""
    valid_every: Size = 500
    """Steps between two measurements on the held-out data."""
    checkpoint_every: Size = 500
    """Steps between two checkpoints: the most that a crash can cost."""
    average: Size = 1
    """How many of the last checkpoints the result is the mean of (Vaswani et al. 2017, section
    6.1); of all, where there are fewer."""


class Evaluation(Table):
    """How the result is measured."""

    beam: Size = 4
    """Beams of the search for translations."""
    length_penalty: Annotated[float, Field(ge=0.0, le=16.0)] = 0.6
    """The exponent of the length in a hypothesis' score (Wu et al. 2016, arXiv:1609.08144)."""
    batch_tokens: Size = 2048
    """Tokens of the sources that are translated at once, padding included."""
