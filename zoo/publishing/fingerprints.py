"""Fingerprints: outputs of a model for a few tokens, published beside its digests.

Digests show that the bytes are right; a fingerprint, that the model built from them computes the
same as the publisher's. It is taken in float32, and is the same on every machine up to its
tolerance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import WeightsError
from zoo.purpose import Reading
from zoo.store.pretrained import Fingerprint
from zoo.transformer import Transformer
from zoo.wording import quoted

Rows = list[list[int]]

N_TOKENS, N_VALUES = 8, 6
TOLERANCE = 1e-4
"""The tolerance, relative to the largest value if that is above 1."""


def take_fingerprint(model: Transformer) -> Fingerprint | None:
    """Return a fingerprint of a model; None if it reads no tokens, or images too, or none of
    its outputs is finite.

    The tokens are spread over the vocabulary, and the values over the output.
    """
    if not model.spec.model.called_with_ids_alone:
        return None
    inputs = [_rows(read) for read in model.spec.model.called_with]
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
    """Return the largest distance between a model's outputs and those of a fingerprint; nan if one
    of them is not a number.

    Raises:
        WeightsError: the fingerprint belongs to another vocabulary or output shape.
    """
    ids = (expected.ids, expected.target_ids)
    try:
        output = _output(model, [rows for rows in ids if rows is not None])
        values = [float(output[tuple(index)]) for index in expected.at]
    except (IndexError, ValueError, TypeError, RuntimeError) as error:
        message = f"the fingerprint of {name} does not fit the model: {quoted(error, 200)}"
        raise WeightsError(message) from None
    found, stated = torch.tensor([values, expected.values], dtype=torch.float64, device="cpu")
    return float((found - stated).abs().max())  # unlike Python's `max`, it does not pass over nan


def _rows(read: Reading) -> Rows:
    ids = [read.vocab * (1 + n) // (1 + N_TOKENS) for n in range(N_TOKENS)]
    return [ids[: read.longest]]


def _output(model: Transformer, inputs: list[Rows]) -> Tensor:
    with torch.inference_mode():
        output: Tensor = model.float().eval()(*(torch.tensor(ids, device="cpu") for ids in inputs))
    return output
