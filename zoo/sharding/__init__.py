"""Models that are larger than one machine: each process of a mesh holds a shard of every tensor.

`mesh.py` (what the dimensions of a mesh mean) → `model.py` (a meta-built model whose tensors are
shares; `cutting.py` is tensor parallelism) → `shares.py` (which elements those are), which are then
read (`reading.py`) or made (`filling.py`). `together.py` lets processes fail together.

`parts.py` is for the modules of components, and says what a process has of a tensor. It alone is
imported where there is no mesh, since torch's distributed tensors take longer to import than a
small model to load.
"""
