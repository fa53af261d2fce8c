"""How well a language model predicts a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from zoo.errors import InputError
from zoo.generation.evaluating import evaluating
from zoo.generation.outputs import no_numbers
from zoo.generation.prompts import read_ids
from zoo.machine.devices import input_device
from zoo.purpose import Generation
from zoo.running.text_model import TextModel
from zoo.running.tokenized import Tokenized
from zoo.running.tokenizer_file import encode
from zoo.spec import ModelSpec
from zoo.weights.dtypes import widened

WINDOW = 1024
"""The default window in tokens, for models with at least this number of positions."""


OnProgress = Callable[[int, int], object]
"""Called with how much of a measurement is done, and the total."""


def unseen(done: int, total: int) -> None:
    """An `OnProgress` that does nothing."""


class Window(NamedTuple):
    """A window of the text: the model reads the tokens from `begin` to `end` (exclusive), and its
    last `n_scored` predictions count. Its last prediction is that of the token at `end`."""

    begin: int
    end: int
    n_scored: int


def perplexity(
    model: TextModel,
    text: str,
    *,
    window: int | None = None,
    stride: int | None = None,
    on_progress: OnProgress = unseen,
) -> dict[str, Any]:
    """Measure how well a decoder predicts a text, each token from those before it.

    The text is one sequence of tokens. A begin token that the tokenizer adds is read but not
    predicted; without one, the first token is neither predicted nor counted. An end token that it
    adds is left out. If the text is longer than the window, the window moves on by `stride` tokens,
    and each token is predicted once, from at least `window - stride + 1` tokens before it.

    Args:
        model: a decoder with its tokenizer.
        text: the text that is predicted.
        window: the number of tokens that the model reads at once. Defaults to `WINDOW`, or the
            number of the model's positions if that is smaller.
        stride: the number of tokens by which the window moves on. Defaults to half the window.
        on_progress: called with the number of windows done, and the total.

    Returns:
        The result of `perplexity_data`, with the `window` and `stride`.

    Raises:
        InputError: the model does not predict the next token of a text, it has no tokenizer, or
            `window` or `stride` does not fit it.
        WeightsError: the model's scores are NaN.
    """
    spec = model.transformer.spec
    how = _predicting(spec)
    if not isinstance(model.text, Tokenized):
        raise InputError(f"{spec.name} has no tokenizer, which makes tokens of a text")
    window, stride = _sizes(spec, how, window, stride)
    ids, begin, n_bytes = _read(model.text, text)
    rows = read_ids([ids], what="text", vocab=how.target_vocab)
    values = rows.values.to(input_device(model.transformer))
    transformer: Any = model.transformer
    nats = 0.0
    every = list(windows(len(ids), begin, window, stride))
    with torch.inference_mode(), evaluating(transformer):
        for done, one in enumerate(every, 1):
            states = transformer.decode(values[:, one.begin : one.end])
            logits = transformer.head(states[0, -one.n_scored :])
            labels = values[0, one.end + 1 - one.n_scored : one.end + 1]
            nats += float(F.cross_entropy(widened(logits), labels, reduction="sum"))
            on_progress(done, len(every))
    if math.isnan(nats):
        raise no_numbers(spec.name, "the scores of the next token")
    return {**perplexity_data(nats, len(ids) - begin, n_bytes), "window": window, "stride": stride}


def perplexity_of(nats: float) -> float:
    """exp of the mean cross-entropy in nats, cut off at 700, near the largest that a float64 has an
    exp of."""
    return math.exp(min(nats, 700.0))


def perplexity_data(nats: float, n_tokens: int, n_bytes: int) -> dict[str, Any]:
    """The figures of a measurement. `perplexity` is exp of the mean cross-entropy per token, in
    nats. `bits_per_byte` is the total cross-entropy in bits, divided by the bytes of the text in
    UTF-8, which makes models with different tokenizers comparable. `tokens` and `bytes` are the
    numbers that were predicted."""
    return {
        "perplexity": perplexity_of(nats / n_tokens),
        "bits_per_byte": nats / math.log(2) / n_bytes,
        "tokens": n_tokens,
        "bytes": n_bytes,
    }


def windows(length: int, begin: int, window: int, stride: int) -> Iterator[Window]:
    """The windows over a sequence of `length` tokens. Each token from `begin` on is predicted in
    exactly one window."""
    scored = begin
    for start in range(0, length, stride):
        end = min(start + window, length - 1)
        if end >= scored:
            yield Window(start, end, end + 1 - scored)
            scored = end + 1
        if scored == length:
            return


def _predicting(spec: ModelSpec) -> Generation:
    """Describe how the model generates. Raises InputError if it does not predict the next token of
    a text."""
    how = spec.model.generation
    if how is None:
        reason = "predicts no next token: perplexity is of decoders"
    elif how.has_source or how.needs_memory:
        reason = "predicts a target, given a source: perplexity of a text is of decoders alone"
    elif how.looks_ahead:
        reason = f"sees the tokens that it has to predict: {', '.join(how.looks_ahead)}"
    else:
        return how
    raise InputError(f"{spec.name} {reason}")


def _sizes(
    spec: ModelSpec, how: Generation, window: int | None, stride: int | None
) -> tuple[int, int]:
    for name, stated in (("window", window), ("stride", stride)):
        if stated is not None and type(stated) is not int:
            raise InputError(f"`{name}` is a number of tokens, not {stated!r:.80}")
    longest = how.longest
    if window is None:
        window = WINDOW if longest is None else min(WINDOW, longest)
    elif window < 1 or (longest is not None and window > longest):
        most = "" if longest is None else f" and at most {longest:,}, its positions"
        raise InputError(f"a window of {window:,} does not fit {spec.name}: it is at least 1{most}")
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride <= window:
        raise InputError(f"a stride of {stride:,} is not from 1 to the window's {window:,}")
    return window, stride


def _read(text: Tokenized, written: str) -> tuple[list[int], int, int]:
    """Tokenize a text. Returns its ids, with the begin token that the tokenizer adds and without an
    end token; the index of the first id that is predicted; and the number of bytes predicted."""
    encoding = encode(text.source, written)
    own = [place for place, added in enumerate(encoding.special_tokens_mask) if not added]
    begin = max(own[0], 1) if own else 0
    if not own or begin > own[-1]:
        raise InputError(
            "the text is too short", help="one token at least is predicted from another"
        )
    # A character that the first token only begins is predicted.
    skipped = min(encoding.offsets[0][1], encoding.offsets[1][0]) if own[0] == 0 else 0
    return encoding.ids[: own[-1] + 1], begin, len(written[skipped:].encode())
