"""Writing, reading and checking of weights on disk, in one safetensors file or in shards.

    held_tensors.py -> writer.py -> file.py, shards.py -> reader.py -> tensor_reader.py

`zoo.saving` and `zoo.loading` use them.
"""
