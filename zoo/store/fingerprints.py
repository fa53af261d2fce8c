"""What a model computes for a few tokens: a fingerprint, which is published beside its digests.

Digests say that the bytes are right; a fingerprint, that what is built of them computes what the
publisher's did. It is taken in float32, so that it is the same on every machine to its tolerance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import WeightsError, quoted
from zoo.purpose import Reading
from zoo.store.pretrained import Fingerprint
from zoo.transformer import Transformer

Rows = list[list[int]]

N_TOKENS, N_VALUES = 8, 6
TOLERANCE = 1e-4
"""Times the largest of the values, if that is above 1."""


def take_fingerprint(model: Transformer) -> Fingerprint | None:
    """A fingerprint of a model; None for one that reads no tokens, or puts out no numbers.

    It is made of tokens from all over the vocabulary, and of values from all over the output.
    """
    inputs = [_rows(read) for read in model.spec.model.called_with]
    if not inputs:
        return None
    output = _output(model, inputs)
    finite = output.isfinite().nonzero()
    if len(finite) == 0:
        return None
    at = [finite[len(finite) * n // N_VALUES].tolist() for n in range(N_VALUES)]
    values = [float(output[tuple(index)]) for index in at]
    return Fingerprint(
        ids=inputs[0],
        target_ids=inputs[1] if len(inputs) > 1 else None,
        at=at,
        values=values,
        tolerance=TOLERANCE * max(1.0, *map(abs, values)),
    )


def difference(model: Transformer, expected: Fingerprint, name: str) -> float:
    """The largest distance between a model's outputs and those of a fingerprint.

    Raises:
        WeightsError: the fingerprint is of another vocabulary, or of another shape.
    """
    ids = (expected.ids, expected.target_ids)
    try:
        output = _output(model, [rows for rows in ids if rows is not None])
        values = [float(output[tuple(index)]) for index in expected.at]
    except (IndexError, ValueError, TypeError, RuntimeError) as error:
        message = f"the fingerprint of {name} does not fit the model: {quoted(error, 200)}"
        raise WeightsError(message) from None
    pairs = zip(values, expected.values, strict=True)
    return max(abs(value - stated) for value, stated in pairs)


def _rows(read: Reading) -> Rows:
    ids = [read.vocab * (1 + n) // (1 + N_TOKENS) for n in range(N_TOKENS)]
    return [ids[: read.longest]]


def _output(model: Transformer, inputs: list[Rows]) -> Tensor:
    with torch.inference_mode():
        output: Tensor = model.float().eval()(*map(torch.tensor, inputs))
    return output
