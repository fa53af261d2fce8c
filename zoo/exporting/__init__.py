"""`zoo export`: models as published checkpoints. `zoo.families` is the way here.

export.py               from a model to the folder of a checkpoint

Of a model that was not imported:
described.py            it, as if it had been imported with a given configuration
completed.py            the values that a configuration leaves out
wholes.py               those that are tables, or lists of words for layers
target.py               where a configuration means another model
special_tokens.py       its special tokens
"""
