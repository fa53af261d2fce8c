"""What a model was made with, and who answers for it: its plugins, lock, card and signature.

`zoo.bundle` puts them beside the weights.
"""
