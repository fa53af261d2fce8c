"""Adapters of low rank, which are merged into the tensors of a published checkpoint.

`adapted` puts an `Adapted` tensor in the place of each that an adapter changes, so that families
know of whole weights only.

    adapter.py (the two files) -> tensor.py (W + scale B A) -> merging.py (what they change)
"""
