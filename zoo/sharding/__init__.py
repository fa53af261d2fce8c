"""Models that are larger than one machine: each process of a mesh has its share of every tensor.

`mesh.py` (what the dimensions of a mesh mean) → `model.py` (a meta-built model whose tensors are
shares; `cutting.py` is tensor parallelism) → `shares.py` (which elements those are), which are then
read (`reading.py`) or made (`filling.py`).
"""

from zoo.sharding.filling import initial_shares
from zoo.sharding.mesh import device_in
from zoo.sharding.reading import load_shares
from zoo.sharding.together import processes_of

__all__ = ["device_in", "initial_shares", "load_shares", "processes_of"]
