"""The names of the files of a run, beside the model."""

CHECKPOINTS = "checkpoints"
METRICS = "metrics.json"
PLOT = "loss.svg"
