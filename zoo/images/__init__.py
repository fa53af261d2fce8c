"""Images: files that are read safely, and the pixels that a model was trained on."""
