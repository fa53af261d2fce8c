"""The promise that a spec means the same in every process: Python gives texts other hashes in each,
and sets of them another order."""

from __future__ import annotations

import os
from typing import Any

import torch

from zoo.plugin_kit.assertions import SAME, close
from zoo.plugin_kit.driver import Bare
from zoo.plugin_kit.drivers import hosted
from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.workers import Workers, serve
from zoo.reading import read_spec
from zoo.registering.plugin_errors import describe_failure
from zoo.registry import Registry
from zoo.spec import ModelSpec


def with_other_hashes() -> Workers:
    """Return a process in which texts have other hashes than in this one."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    return Workers(__name__, PYTHONHASHSEED=seed)


def same_elsewhere(process: Workers, spec: ModelSpec, registry: Registry) -> None:
    """Raises PromiseError unless the tensors of a spec, where they start, and the output are the
    same in another process."""
    [found] = process.ask(spec, registry)
    if found is None:
        return  # read again, it is another spec, which the promise of saving is about
    starts, output = found
    for here, there in zip(_starts(spec), starts, strict=True):
        if here != there:
            raise PromiseError(
                f"`{here[0]}` starts from {here[1]}, and in another process `{there[0]}` stands "
                f"there and starts from {there[1]}",
                help=_HASHES,
            )
    own = _tensor(_output(spec))
    if not close(_tensor(output), own, SAME):
        again = _output(read_spec(spec.to_toml(), registry=registry))
        if close(_tensor(again), own, SAME):  # else `saving` tells what is not stored
            raise PromiseError("the output is another in another process", help=_HASHES)


_HASHES = (
    "`hash` of a text and the order of a set differ from process to process; `zlib.crc32` and "
    "`sorted` do not"
)


def _starts(spec: ModelSpec) -> list[list[str]]:
    """Return the names of the tensors, each with where it starts."""
    tensors = (t for t in spec.layout.placed() if t.name not in spec.ties)
    return [[t.name, f"{spec.model.init.start_of(t)}"] for t in tensors]


def _output(spec: ModelSpec) -> list[float]:
    """Return the numbers that the module puts out, and 0 if there is no module."""
    driver = hosted(spec)
    if isinstance(driver.model, Bare):
        return [0.0]
    return [number for output in driver(*driver.inputs()) for number in output.flatten().tolist()]


def _tensor(output: list[float]) -> torch.Tensor:
    """Return the numbers without NaN, which is equal to nothing: `precision` tells of it."""
    return torch.tensor(output, dtype=torch.float64).nan_to_num()


def _answer(text: str, registry: Registry) -> Any:
    try:
        spec = read_spec(text, registry=registry)
        return (_starts(spec), _output(spec)) if spec.to_toml() == text else None
    except Exception as error:
        return describe_failure("reading the spec in another process", error).message


if __name__ == "__main__":
    serve(_answer)
