"""The tables of a recipe, each a frozen pydantic model with its defaults.

Those of the data are in `data_tables.py` beside it, those of the optimiser and of the schedule in
`optimizer_tables.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from zoo.component import PositiveFloat, Probability, Size, contradiction
from zoo.validating.value_errors import Format

Positive = Annotated[float, Field(gt=0.0, le=1e30)]
"""A positive number within what the optimiser's arithmetic, which is in float32, can hold."""
Decay = Annotated[float, Field(ge=0.0, le=1e30)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Table(BaseModel):
    """Base class of all tables: values are not converted, and unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


class Head(Table):
    """The keys above the first table."""

    format: Format
    """The version of this format."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """The name of the run, and of its folder unless `-o` names another. The model keeps the name
    in its spec."""
    model: str
    """The model to train: a spec file in the recipe's folder, a named model, or a saved model, from
    whose weights training starts."""
    weights: str | None = None
    """A saved model, by its folder or its name, whose weights training starts from where `model` is
    a spec with another head. Each weight is taken from the one of the same name there, but for
    `new`."""
    new: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """The weights that begin anew beside those of `weights`, by name with wildcards as in `frozen`:
    `["head.*"]`."""
    labels: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """The names of the classes of a classifier, in the order of their numbers. By default those of
    the model or, if it has none, those in the training data, sorted."""
    seed: Seed = 0
    """The seed of the initial weights, the order of the data, the held-out parts, dropout and the
    masked tokens."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """The dtype of the saved weights, which are trained in float32."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.new and self.weights is None:
            raise contradiction("without `weights`, all weights begin anew", "new")
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise contradiction("two labels are the same", "labels")
        return self


Token = Annotated[str, Field(min_length=1)]


class Specials(Table):
    """The special tokens."""

    pad: Token = "<pad>"
    """Fills short sequences."""
    bos: Token = "<s>"
    """Begins each target, or text."""
    eos: Token = "</s>"
    """Ends each target, or text."""


_NO_TOKEN = re.compile(r"[\s:$]")
"""What means something else in the template of a learned tokenizer."""


class Bpe(Specials):
    """Byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909), learned from the
    training data. The model's spec has the size of the vocabulary. For a model that reads whole
    texts, `<mask>` is a fourth special token, and `bos` and `eos` stand around each text."""

    shared: bool = True
    """Whether source and target have one vocabulary."""

    @model_validator(mode="after")
    def _check(self) -> Bpe:
        if len({self.pad, self.bos, self.eos}) < 3:
            raise contradiction("pad, bos and eos are three tokens", "pad", "bos", "eos")
        for key in ("pad", "bos", "eos"):
            if _NO_TOKEN.search(getattr(self, key)):
                raise contradiction("a learned token has no white space, `:` or `$`", key)
        return self


class TokenizerFiles(Specials):
    """Existing tokenizers, in the format of `tokenizers`. Of a model that reads whole texts, the
    file's own template says what begins and ends a text, and `bos` and `eos` need not exist."""

    source: str
    """The file for sources or, for text models, for the text. Then its own template must put `bos`
    before a text, which `zoo run` continues."""
    target: str | None = None
    """The file for targets, if it is a different one."""


class OfModel(Table):
    """The tokenizers beside the saved model that training starts from, with the special tokens that
    its `generation_config.json`, or else its published `config.json`, states. Several may be the
    same token, as in T5, Marian and GPT-2. If neither states them, they are `<s>` and `</s>`, and
    padding, which no token sees, is `</s>` too. Answers and chats need no `bos`."""

    pad: Token | None = None
    """Fills short sequences, if not the token that the model was published with."""
    bos: Token | None = None
    """Begins each target, or text, if not the token that the model was published with."""
    eos: Token | None = None
    """Ends each target, or text, if not the token that the model was published with."""


Tokenizer = Bpe | TokenizerFiles | OfModel
TOKENIZERS: Mapping[str, type[Table]] = {"bpe": Bpe, "files": TokenizerFiles, "of_model": OfModel}


class Training(Table):
    """The steps, the batches, the log and the checkpoints."""

    steps: Size
    """The number of updates of the weights."""
    batch_tokens: Size = 4096
    """The most tokens of a batch on its longer side, padding included. A batch is one update over
    all processes. A longer example is a batch of its own."""
    accumulate: Size = 1
    """The number of parts that a batch is divided into to save memory. The update stays the
    same."""
    recompute: bool = False
    """Whether the layers are computed a second time in the backward pass, so that only their inputs
    are kept in memory. The update stays the same, to the last bit."""
    max_length: Annotated[int, Field(ge=2)] = 256
    """The most tokens of a sequence. Longer pairs are left out of training, longer text is cut into
    pieces, and texts to classify or to translate and translations are truncated."""
    label_smoothing: Probability = 0.0
    """The share of a target's probability that is spread evenly over all tokens, or all classes
    (Szegedy et al. 2015, arXiv:1512.00567)."""
    clip_norm: PositiveFloat | None = None
    """The largest norm of all gradients together; larger ones are scaled down to it."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the arithmetic, by autocast; weights and optimiser stay in float32."""
    frozen: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """The weights that stay as they are, by name; in a name, `*` stands for any text, `?` for one
    character and `[0-5]` for one of these. A tied weight is meant by each of its names."""
    shard: bool = False
    """Whether the weights are sharded over several processes (FSDP2); otherwise each process has
    all of them."""
    log_every: Size = 50
    """Steps between two lines of the log, which are the points of the plot; each measurement and
    each checkpoint adds one."""
    valid_every: Size = 500
    """Steps between two measurements on the held-out data."""
    checkpoint_every: Size = 500
    """Steps between two checkpoints: the most steps that a crash can lose."""
    average: Size = 1
    """The result is the mean of the weights of this number of last checkpoints, or of all if there
    are fewer (Vaswani et al. 2017, section 6.1)."""
    keep: Literal["last", "best"] = "last"
    """Which checkpoint is the result: the last one, or the one with the lowest loss on the held-out
    data, which is then measured at each checkpoint."""
    patience: Size | None = None
    """With `keep = "best"`, training ends at a checkpoint that is this number of steps or more
    after the best one (early stopping)."""

    @model_validator(mode="after")
    def _check(self) -> Training:
        if self.keep == "best" and self.average > 1:
            what = "`average` makes a mean of the last checkpoints, and `keep` chooses a single one"
            raise contradiction(what, "keep", "average")
        if self.patience is not None and self.keep != "best":
            raise contradiction('`patience` counts from the best one: `keep = "best"`', "patience")
        return self


class Lora(Table):
    """Low-rank adaptation (Hu et al. 2021, arXiv:2106.09685) of a saved model: of a matrix W, W +
    `alpha` / `rank` B A is used, and only A and B are trained. All other weights stay as they are,
    but for those that begin anew (`new`). The result has the sums as its weights."""

    weights: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """The matrices of linear maps that are adapted, by name with wildcards as in `frozen`:
    `["*.q_proj.weight", "*.v_proj.weight"]`."""
    rank: Size = 8
    """The rows of A, which start from random numbers, and the columns of B, which start from 0."""
    alpha: Positive = 8.0
    """The factor of B A, times `rank`."""
    dropout: Probability = 0.0
    """The share of the inputs of A that are left out in training."""


class Masking(Table):
    """What a masked language model predicts (Devlin et al. 2018, arXiv:1810.04805): some tokens of
    each text, drawn anew each time (Liu et al. 2019, arXiv:1907.11692). Those of held-out texts are
    drawn once, and are the same whatever the `seed`."""

    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.15
    """The share of the tokens of a text that are predicted; at least one is. Special tokens are
    not."""
    masked: Share = 0.8
    """The share of the predicted tokens in whose place the model reads the mask token."""
    random: Share = 0.1
    """The share in whose place it reads a random token. The rest are left as they are."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.masked + self.random > 1.0:
            raise contradiction("`masked` and `random` are more than all", "masked", "random")
        if self.masked + self.random == 0.0:
            raise contradiction("the model would read what it has to predict", "masked", "random")
        return self


class Evaluation(Table):
    """The measurement of the result."""

    beam: Size = 4
    """The number of beams in the search for translations."""
    length_penalty: Annotated[float, Field(ge=0.0, le=16.0)] = 0.6
    """The exponent of the length in a hypothesis' score (Wu et al. 2016, arXiv:1609.08144)."""
    batch_tokens: Size = 2048
    """The most tokens of the sources of a batch of translations, padding included."""
