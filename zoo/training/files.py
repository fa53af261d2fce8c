"""What a run leaves in its folder, beside the model."""

CHECKPOINTS = "checkpoints"
RECIPE = "recipe.toml"
METRICS = "metrics.json"
PLOT = "loss.svg"
