"""The sizes of the small models that plugins are checked in."""

SIZES = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 2, "max_length": 16, "vocab": 11}
"""Small sizes for the fields that need one, by name."""
