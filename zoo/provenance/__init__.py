"""The provenance of a model: its plugins, lock, card and signature.

`zoo.bundle` writes them beside the weights.
"""
