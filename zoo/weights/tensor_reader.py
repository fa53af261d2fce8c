"""Reading, checking and casting of the whole tensors of saved weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from zoo.errors import Place, WeightsError
from zoo.initial import empty, fill_initial
from zoo.machine.memory import Arena, Scratch
from zoo.machine.threads import on_all_cores
from zoo.spec import ModelSpec
from zoo.weights.dtypes import TORCH_DTYPES, beyond_range, n_beyond
from zoo.weights.file import Record, changed_tensors
from zoo.weights.held_tensors import bytes_of
from zoo.weights.reader import Weights


@dataclass(frozen=True, slots=True)
class TensorReader:
    """Reads, checks and casts the tensors of open weights."""

    weights: Weights
    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype | None
    verify: bool
    mapped: bool
    arena: Arena = field(default_factory=Arena)
    scratch: Scratch = field(default_factory=Scratch)

    def read_all(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Read the named tensors, one at a time on each core, so that little more than the result
        is in memory."""
        sizes = {name: self.weights.header.records[name].n_bytes for name in names}
        if self.mapped and not self.verify:
            # A mapping reads nothing before the model is used, so threads would not pay off.
            tensors = {name: self._read(name) for name in sizes}
        else:
            tensors = on_all_cores(self._read, sizes)
        self.weights.check_unchanged()
        if changed := [name for name, tensor in tensors.items() if tensor is None]:
            raise changed_tensors(changed, Place(str(self.weights.path)))
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def _read(self, name: str) -> torch.Tensor | None:
        """Read one tensor; return None if its bytes do not have the SHA-256 of its record. Raises
        `WeightsError` if the dtype that it is cast to cannot hold its values."""
        record = self.weights.header.records[name]
        stored, wanted = TORCH_DTYPES[record.dtype], dtype_in_model(record, self.dtype)
        on_cpu = self.device.type == "cpu"
        stays = stored == wanted and on_cpu
        if self.mapped and stays:
            # Hashed by reading, not in the mapping, where a truncated file would raise SIGBUS.
            sha256 = self.weights.sha256(name) if self.verify else None
            tensor = self._map(name, record)
        else:
            tensor = empty(record.shape, stored, self.spec, self.arena if stays else self.scratch)
            sha256 = self.weights.read(name, bytes_of(tensor), hashed=self.verify)
        if self.verify and sha256 != record.sha256:
            return None
        if on_cpu and not stays:
            cast = empty(record.shape, wanted, self.spec, self.arena).copy_(tensor)
        else:
            cast = tensor.to(self.device, wanted)
        if n_values := n_beyond(tensor, cast):
            place = Place(str(self.weights.path))
            raise WeightsError(beyond_range(n_values, name, wanted, place))
        return cast

    def _map(self, name: str, record: Record) -> torch.Tensor:
        dtype = TORCH_DTYPES[record.dtype]
        if record.n_bytes == 0:
            return empty(record.shape, dtype, self.spec, self.arena)
        mapping, offset = self.weights.mapped(name)
        count = record.n_bytes // dtype.itemsize
        return torch.frombuffer(mapping, dtype=dtype, count=count, offset=offset).view(record.shape)

    def initial(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The named tensors, with the initial values of the spec."""
        records = self.weights.header.records
        dtypes = {name: dtype_in_model(records[name], self.dtype) for name in names}
        tensors = {
            name: empty(records[name].shape, dtype, self.spec, self.arena)
            for name, dtype in dtypes.items()
        }
        fill_initial(tensors, self.spec)
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}


def dtype_in_model(record: Record, wanted: torch.dtype | None) -> torch.dtype:
    """The dtype of a stored tensor in the model: `wanted` for floating-point tensors, if it is not
    None, and the stored dtype otherwise."""
    stored = TORCH_DTYPES[record.dtype]
    return wanted if wanted is not None and stored.is_floating_point else stored
