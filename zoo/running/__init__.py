"""`zoo run`: a model does what it is for, with text where its folder holds a tokenizer."""
