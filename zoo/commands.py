"""What commands do with torch; imported only by those that need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zoo.building import build
from zoo.errors import Problem, ZooError
from zoo.saving import save
from zoo.spec import ModelSpec
from zoo.weights_file import weights_path

if TYPE_CHECKING:
    from collections.abc import Callable


def build_and_save(
    spec: ModelSpec, output: Path | None, *, seed: int, dtype: str, device: str
) -> dict[str, Any]:
    """Build a model and save it; what `zoo build` reports."""
    try:
        target = torch.device(device)
    except RuntimeError:
        raise ZooError(
            Problem(f"there is no device `{device}`", help="`cpu`, `cuda`, `cuda:1`, `meta`, ...")
        ) from None
    report: dict[str, Any] = {
        "name": spec.name,
        "spec_digest": spec.digest,
        "parameters": spec.n_parameters,
        "seed": seed,
        "dtype": dtype,
        "device": device,
        "path": None,
        "content_digest": None,
    }
    with _progress(f"filling {spec.name}", spec.layout.n_elements * 4) as on_bytes:
        model = build(
            spec, seed=seed, device=target, dtype=getattr(torch, dtype), on_bytes=on_bytes
        )
    if target.type != "meta":
        path = weights_path(output if output is not None else Path(spec.name))
        report["content_digest"] = save(model, path)
        report["path"] = str(path)
    return report


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on stderr, shown only when that is a terminal."""
    import sys

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda n: progress.advance(task, n)
