"""Merging an adapter into the tensors of a checkpoint, before they are converted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zoo.errors import Place, WeightsError
from zoo.families.adapters.adapter import Adapter, Factors
from zoo.families.adapters.tensor import Adapted, Update
from zoo.families.checkpoint import Stored
from zoo.families.part import Part
from zoo.families.plan import Plan
from zoo.families.quantized.tensor import Quantized
from zoo.spec import ModelSpec
from zoo.weights.dtypes import FLOATS
from zoo.wording import PATH, quoted


def adapted(
    tensors: Mapping[str, Stored | Quantized],
    adapter: Adapter,
    plan: Plan,
    spec: ModelSpec,
    part: Part | None,
) -> dict[str, Stored | Quantized | Adapted]:
    """Put adapted tensors in the place of those that an adapter changes.

    Args:
        tensors: the tensors of the checkpoint, by the names that the plan has.
        adapter: the adapter.
        plan: what becomes of the tensors.
        spec: the spec of the model.
        part: the part of the checkpoint that is the model; None if all of it is.

    Raises:
        WeightsError: the adapter changes a tensor that is not there, or of another shape, that the
            model has no use for, or that is one with another, which the adapter leaves as it is.
    """
    return {**tensors, **_Merge(tensors, adapter, plan, spec, part).adapted()}


class _Merge:
    """The tensors of one checkpoint, and one adapter."""

    def __init__(
        self,
        tensors: Mapping[str, Stored | Quantized],
        adapter: Adapter,
        plan: Plan,
        spec: ModelSpec,
        part: Part | None,
    ) -> None:
        self.tensors, self.adapter, self.plan, self.spec = tensors, adapter, plan, spec
        self.part = part
        self.steps = {key: step for step in plan.steps for key in step.sources}
        self.by_end: dict[str, list[str]] = {}
        for key in tensors:
            for end in _ends(key):
                self.by_end.setdefault(end, []).append(key)

    def adapted(self) -> dict[str, Adapted]:
        values = {name: self.key_of(name) for name in self.adapter.values}
        paths = {path: self.key_of(f"{path}.weight") for path in self.adapter.factors}
        for names in (values, paths):
            if len(set(names.values())) < len(names):
                raise self.refused("two of its tensors are for one of the checkpoint")
        replaced = {key: self.adapter.values[name] for name, key in values.items()}
        for key, tensor in replaced.items():
            self.check_shape(key, tensor.shape)
        updates = {
            key: self.update(path, key, self.adapter.factors[path]) for path, key in paths.items()
        }
        return {
            key: Adapted(
                key,
                self.tensors[key].dtype,
                replaced.get(key, self.tensors[key]),
                updates.get(key),
            )
            for key in {**replaced, **updates}
        }

    def update(self, path: str, key: str, factors: Factors) -> Update:
        """The update of the tensor `key`, after checking that it fits."""
        a, b, of_table = factors
        scale = self.adapter.scale(path, a.shape[0])
        transposed = of_table or self.steps[key].active.relayout.transpose
        update = Update(a, b, scale, transposed)
        self.check_shape(key, update.shape)
        return update

    def key_of(self, name: str) -> str:
        """The tensor of the checkpoint that the adapter calls `name`: the one of this name, or else
        the one whose name differs from it only by what stands before, as that of a model with a
        head and that of one without do.

        Raises:
            WeightsError: there is none, or more than one; or it cannot be adapted.
        """
        if self.part is not None:
            name = self.part.words.own(name)
        if name in self.tensors:
            found = [name]
        else:
            found = self.by_end.get(name) or [end for end in _ends(name) if end in self.tensors]
        if len(found) != 1:
            told = "are several tensors" if found else "is no tensor"
            raise self.refused(f"there {told} `{name}` in the checkpoint, which it changes")
        self.check_used(found[0])
        return found[0]

    def check_used(self, key: str) -> None:
        """Raise `WeightsError` unless a change of this tensor changes that tensor of the model
        alone."""
        plan = self.plan
        if key in plan.copies or key in plan.copies.values():
            raise self.refused(f"it changes `{key}`, of which the checkpoint has a copy")
        if key not in self.steps:
            raise self.refused(f"it changes `{key}`, which the model does not have")
        for target in self.steps[key].targets:
            tensor = self.spec.tensors[target]
            if tensor.role == "embedding" and (alias := self.spec.aliases.get(target)):
                message = (
                    f"it changes `{key}`, and the model has one tensor for it and `{alias[0]}`"
                )
                raise self.refused(message)

    def check_shape(self, key: str, shape: tuple[int, ...]) -> None:
        """Raise `WeightsError` unless a tensor is of floats and has this shape."""
        tensor = self.tensors[key]
        if tensor.shape != shape:
            there = list(tensor.shape)
            message = f"it changes `{key}` as one of {list(shape)}, and the checkpoint's is {there}"
            raise self.refused(message)
        if tensor.dtype not in FLOATS:
            raise self.refused(f"it changes `{key}`, which is {tensor.dtype}")

    def refused(self, reason: str) -> WeightsError:
        """The error for an adapter that is not of this checkpoint."""
        base = self.adapter.file.data.get("base_model_name_or_path")
        hint = None if base is None else f"it says that it is of {quoted(base, PATH)}"
        message = f"the adapter does not fit: {reason}"
        return WeightsError(message, Place(str(self.adapter.path)), hint)


def _ends(name: str) -> Iterator[str]:
    """What is left of a name without its first parts."""
    while name:
        name = name.partition(".")[2]
        if name:
            yield name
