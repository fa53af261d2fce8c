"""The promise of the cuts of a component (`zoo.layout.Cut`): processes that each have a part of the
module compute the same as the whole module. Two processes try it (`cut_worker.py`)."""

from __future__ import annotations

from zoo.layout import Cut, Layout, Tensor
from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.workers import Workers
from zoo.registry import Registry
from zoo.spec import ModelSpec

N_PROCESSES = 2


def in_processes() -> Workers:
    """Return the processes that try cuts."""
    return Workers("zoo.plugin_kit.cut_worker", N_PROCESSES)


def same_when_cut(processes: Workers, spec: ModelSpec, registry: Registry) -> None:
    """Raises PromiseError unless the model of a spec computes the same when it is cut."""
    _check_stated(spec.model.layout())
    if any((cut.units or N_PROCESSES) % N_PROCESSES for _, cut in spec.layout.cuts()):
        return  # such as 3 heads, which cannot be divided among the processes
    processes.ask(spec, registry)


def _check_stated(layout: Layout) -> None:
    """Raises PromiseError unless each cut names tensors that exist and axes that they have, and the
    axes can be divided into whole units."""
    of_modules: dict[str, dict[str, Tensor]] = {}
    for full, tensor in layout.tensors():
        module, _, key = full.rpartition(".")
        of_modules.setdefault(module, {})[key] = tensor
    for name, cut in layout.cuts():
        tensors = of_modules.get(name, {})
        if cut.axes and tensors and tensors.keys().isdisjoint(cut.axes):
            raise PromiseError(
                f"the cut of `{name}` names {', '.join(cut.axes)}, and its tensors are "
                f"{', '.join(tensors)}"
            )
        for key in tensors.keys() & cut.axes.keys():
            _check_axis(f"the cut of `{name}`", key, tensors[key], cut)


def _check_axis(what: str, tensor: str, found: Tensor, cut: Cut) -> None:
    axis = cut.axes[tensor]
    if not -len(found.shape) <= axis < len(found.shape):
        raise PromiseError(
            f"{what} is along axis {axis} of `{tensor}`, whose shape is {found.shape}"
        )
    if cut.units is not None and found.shape[axis] % cut.units:
        raise PromiseError(
            f"{what} spreads {cut.units} units over axis {axis} of `{tensor}`, which has "
            f"{found.shape[axis]} elements there: not as many for each unit",
            help="is it the other axis? A weight is (outputs, inputs)",
        )
