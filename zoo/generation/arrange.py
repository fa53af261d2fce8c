"""Packing of weight matrices into the memory layout in which a CPU multiplies fastest."""

from __future__ import annotations

from zoo.arguments import check_count
from zoo.errors import InputError
from zoo.generation.decoding import check_transformer
from zoo.int8 import has_int8
from zoo.linear import Linear
from zoo.transformer import Transformer


def arrange_weights(model: Transformer, *, rows: int) -> None:
    """Keep a copy of each large matrix in the memory layout that the CPU reads fastest.

    Use it for inference with few rows at a time. Packing takes as long as generating ten tokens,
    and the copies as much memory as the matrices. Nothing is packed on a GPU, for shards of a
    matrix, for more rows than one in float16, or in bfloat16 on processors without products in it,
    or for two or three rows in float32 on Intel's processors, where no copy is faster. The weights,
    their names, files and digests stay the same. If a matrix is changed in place later, as by
    `load_state_dict`, its new values are used; a call that can have gradients for a matrix drops
    its copy.

    Args:
        model: the model.
        rows: the number of rows of most products. In generation it is the number of sequences at a
            time, times the beams; in an encoder, the number of tokens at a time. With 1, only
            products with a single row use the copies: GPT-2 small generates in 0.8 to 0.95 of the
            time that it takes with copies for more rows. These are used for any number of rows, but
            in float32 on Intel's processors for just so many; they are worth most up to about 32.
            With AVX-512, a forward pass of GPT-2 small with 256 rows takes 0.95 of the time.

    Raises:
        InputError: this is no `zoo.Transformer`, or its weights are in 8 bits; or `rows` is not an
            integer of at least 1.
    """
    check_transformer(model, "is arranged")
    n_rows = check_count("rows", rows)
    if has_int8(model):
        message = f"the weights of {model.spec.name} are in 8 bits, in an order of their own"
        raise InputError(message, help="arrange floats, or leave the 8 bits as they are")
    for module in model.modules():
        if isinstance(module, Linear):
            module.pack(n_rows)
