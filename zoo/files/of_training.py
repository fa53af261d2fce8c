"""The names of the files that a training leaves beside its model."""

CHECKPOINTS = "checkpoints"
METRICS = "metrics.json"
PLOT = "loss.svg"
LOCK = ".zoo-train.lock"
"""Beside the model while it is trained, and left there by a run that was killed."""
