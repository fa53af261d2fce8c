"""The default width of attention heads."""

from typing import Any

from zoo.component import contradiction


def default_head_dim(data: dict[str, Any]) -> int:
    """d_model / n_heads, of the fields before `head_dim`."""
    return max(1, data["d_model"] // data["n_heads"])


def check_default_head_dim(d_model: int, n_heads: int) -> None:
    """Raise a contradiction if d_model is not divisible by n_heads."""
    if d_model % n_heads:
        raise contradiction(
            f"d_model = {d_model} is not divisible by n_heads = {n_heads}; state `head_dim`, or "
            "change one of the two",
            "n_heads",
            "d_model",
        )
