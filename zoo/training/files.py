"""What a run leaves in its folder, beside the model."""

CHECKPOINTS = "checkpoints"
METRICS = "metrics.json"
PLOT = "loss.svg"
