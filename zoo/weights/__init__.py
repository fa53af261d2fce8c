"""Weights on disk, as one safetensors file or as shards: written, read and checked.

    held_tensors.py -> writer.py -> file.py, shards.py -> reader.py -> tensor_reader.py

`zoo.saving` and `zoo.loading` join them.
"""
