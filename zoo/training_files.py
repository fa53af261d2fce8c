"""The names of the files that a training leaves beside its model."""

CHECKPOINTS = "checkpoints"
METRICS = "metrics.json"
PLOT = "loss.svg"
