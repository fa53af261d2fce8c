"""The parts of commands that need torch; imported only by those commands."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.building import build
from zoo.bundle import is_bundle
from zoo.cli.progress import bytes_bar
from zoo.errors import Place, SpecError, WeightsError
from zoo.files.of_model import SELECTED
from zoo.initial import n_bytes_of
from zoo.machine.devices import usable_device
from zoo.saving import described
from zoo.spec import ModelSpec
from zoo.weights.dtypes import FLOATS, dtype_name, usable_dtype
from zoo.weights.file import is_file_name, weights_path
from zoo.weights.reader import read_header
from zoo.weights.writer import destination
from zoo.wording import quoted

if TYPE_CHECKING:
    from zoo.families.import_plan import Import
    from zoo.registry import Registry


def build_and_save(
    spec: ModelSpec,
    output: Path | None,
    *,
    seed: int,
    dtype: str,
    device: str,
    max_shard_bytes: int | None,
) -> dict[str, Any]:
    """Build a model and save it. Returns the report of `zoo build`."""
    target = usable_device(device)
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
    torch_dtype = usable_dtype(dtype)
    if target.type == "meta":
        build(spec, device=target, dtype=torch_dtype)
        return report
    path = output if output is not None else _own_folder(spec)
    _refuse_to_replace(path)
    with (
        bytes_bar(f"building {spec.name}", 2 * n_bytes_of(spec, torch_dtype)) as bar,
        # Opened first, so that an unwritable place is reported before the long work.
        destination(path, max_shard_bytes=max_shard_bytes, on_bytes=bar.advance) as write,
    ):
        model = build(spec, seed=seed, device=target, dtype=torch_dtype, on_bytes=bar.advance)
        header, content = described(model)
        provenance = {**header.provenance, "seed": str(seed)}  # a number in JSON has 53 bits
        header = replace(header, provenance=provenance)
        write(header, content)
        report["content_digest"] = header.content_digest
    report["path"] = str(weights_path(path))
    return report


def _own_folder(spec: ModelSpec) -> Path:
    """The folder that has the model's name.

    Raises:
        SpecError: the name is inherited, so that the folder is another model's.
    """
    if spec.origin is not None:
        table = spec.origin.table
        name = table.entries["name"]
        if name.document is not table.document:
            message = f"{quoted(spec.name)} is the name of a spec that this one extends"
            help_ = f"state a `name` in {quoted(table.document.name, 200)}, or a folder: `-o DIR`"
            raise SpecError(message, name.place(value=True), help_)
    return Path(spec.name)


def _refuse_to_replace(path: Path) -> None:
    """Refuse to replace weights with initial ones, unless they are initial weights themselves.

    Raises:
        WeightsError: the existing weights are not the zoo's, are those of a bundle, were imported,
            or were saved by something else than `zoo build`, and so may have been trained.
    """
    there = weights_path(path)
    if not os.path.isfile(there) or (there == path and not is_file_name(path)):
        return  # nothing exists, or a file in place of a folder, which is reported later
    try:
        header = read_header(there)
    except WeightsError:
        what = "a file that holds no weights of the zoo"
    else:
        if is_bundle(there.parent):
            what = "those of a bundle, which is never changed"
        elif header.origin:
            what = "imported weights"
        elif header.seed is None:
            what = "weights that `zoo build` has not made, and that may be trained"
        else:
            return
    message = f"initial weights would take the place of {what}"
    raise WeightsError(
        message, Place(str(there)), help="`-o` names another place; or remove what is there"
    )


def import_and_save(
    source: Path | str,
    output: Path | None,
    *,
    part: str | None,
    adapter: Path | str | None,
    name: str | None,
    registry: Registry,
) -> dict[str, Any]:
    """Import a checkpoint. A text in place of a path is an address. Returns the report of `zoo
    import`."""
    from zoo.families.adapters.adapter import FILES as ADAPTER
    from zoo.families.import_plan import plan_import
    from zoo.families.importing import save_import
    from zoo.store.addresses import downloaded
    from zoo.store.files import Store

    sources: list[dict[str, Any]] = []
    with ExitStack() as stack:

        def here(place: Path | str, patterns: Collection[str]) -> Path:
            """The folder at a place, which is downloaded if it is an address."""
            if isinstance(place, Path):
                return place
            with bytes_bar(place) as bar:
                there = stack.enter_context(
                    downloaded(
                        place,
                        patterns,
                        registry,
                        Store.default(),
                        on_total=bar.set_total,
                        on_bytes=bar.advance,
                    )
                )
            sources.append(there.source.model_dump(exclude_none=True))
            return there.folder

        whole = here(source, SELECTED)
        change = None if adapter is None else here(adapter, ADAPTER)
        found = plan_import(whole, part=part, adapter=change, name=name, registry=registry)
        folder = output if output is not None else Path(found.spec.name)
        with bytes_bar(f"importing {found.spec.name}", found.n_bytes) as bar:
            digest = save_import(found, folder, on_bytes=bar.advance)
    return {
        **_imported(found),
        "part": part,
        "adapter": None if adapter is None else str(adapter),
        "sources": sources,
        "path": str(folder),
        "content_digest": digest,
    }


def _imported(found: Import) -> dict[str, Any]:
    """The part of the report of `zoo import` that the plan tells."""
    dtypes = {dtype_name(FLOATS[stored]): names for stored, names in found.dtypes.items()}
    usual, *others = dtypes
    return {
        "name": found.spec.name,
        "family": found.origin.family,
        "spec_digest": found.spec.digest,
        "parameters": found.spec.n_parameters,
        "dtype": usual,
        "other_dtypes": {dtype: dtypes[dtype] for dtype in others},
        "quantization": found.origin.quantization,
        "left_out": [asdict(one) for one in found.left_out],
        "made": [companion.name for companion in found.made],
    }
