"""The families against transformers: tiny random checkpoints, imported, run and exported again."""
