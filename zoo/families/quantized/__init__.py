"""Quantized tensors of a published checkpoint, read as the floats that they stand for.

Of each quantized tensor a checkpoint holds several: small numbers, scales that blocks of them
share, and perhaps zero points. `dequantized` puts one `Quantized` in their place, under the name
that the tensor of floats has, so that families know of floats only.

    packing.py -> tensor.py -> stated.py -> a module for the checkpoints of each kind of tool
    -> dequantized.py, which knows all of them
"""
