"""`zoo run`: running a model on its task, with text if its folder holds a tokenizer."""
