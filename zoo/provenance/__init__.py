"""The provenance of a model: its plugins, lock and card.

`zoo.bundle` writes them beside the weights; `zoo.signing` signs all of it.
"""
