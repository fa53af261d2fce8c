"""Models that are larger than one machine: each process of a mesh holds a shard of every tensor.

`mesh.py` (the dimensions of a mesh) → `model.py` (a meta-built model with sharded tensors;
`cutting.py` is tensor parallelism) → `shares.py` (the elements of each shard), which are then read
(`reading.py`) or initialised (`filling.py`). `together.py` lets processes fail together,
and `company.py` lets them end a generation together.

`parts.py` is for the modules of components, and returns a process' part of a tensor. Without a
mesh, it is the only module that is imported, since torch's distributed tensors take longer to
import than a small model takes to load.
"""
