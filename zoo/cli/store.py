"""Commands for published models: `zoo pull`, `push`, `verify`, `rm`, `gc`, `store`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoo.byte_counts import human_bytes
from zoo.cli.options import AddressType, Registries, json_option, model_type, path_type
from zoo.cli.output import print_json, print_report, print_text
from zoo.cli.progress import bytes_bar
from zoo.errors import Problem, ZooError, noted
from zoo.wording import PATH, counted, quoted, typed

if TYPE_CHECKING:
    from zoo.publishing.checking import Verdict
    from zoo.registry import Registry
    from zoo.store.files import Store
    from zoo.store.refs import Ref


@click.command()
@click.argument("names", nargs=-1, required=True, type=model_type)
@click.option(
    "--trust-first-use",
    is_flag=True,
    help="Accept a model without published digests, and refuse it if it changes later.",
)
@json_option
@click.pass_obj
def pull(
    registries: Registries, names: tuple[str, ...], trust_first_use: bool, as_json: bool
) -> None:
    """Download published models into the store.

    Their files are checked by size and digest. Problems are reported at the end.
    """
    from zoo.store.files import Store
    from zoo.store.pulling import pull

    registry, store = registries(), Store.default()
    problems: list[Problem] = []
    rows: list[dict[str, Any]] = []
    for name in names:
        with noted(problems):
            with bytes_bar(name) as bar:
                ref = pull(
                    name,
                    registry,
                    store,
                    trust_first_use=trust_first_use,
                    on_total=bar.set_total,
                    on_bytes=bar.advance,
                )
            row = _row(ref, store.snapshot(ref.files))
            rows.append(row)
            if not as_json:
                print_text("{name}@{version}\n{folder}\n{content_digest}".format(**row))
    if as_json:
        print_json(rows)
    if problems:
        raise ZooError(problems)


@click.command()
@click.argument("model", type=model_type)
@click.argument("address", type=AddressType())
@click.option(
    "--license",
    help="The SPDX licence of the weights: Apache-2.0.  [default: that of the model card]",
)
@click.option(
    "-o",
    "--output",
    type=path_type,
    help="Path for the model's file, in the folder of a registry's `catalog`.  [default: stdout]",
)
@json_option
@click.pass_obj
def push(
    registries: Registries,
    model: str,
    address: str | Path,
    license: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Publish a model, so that others can pull it.

    MODEL is a folder or a model in the store. ADDRESS is a folder, `hf://owner/name`, or an address
    such as `s3://bucket/folder`. The command writes the model's file, with which others can pull
    it. Files that do not belong to a model are left out, and named.
    """
    from zoo.files.atomic import write_text
    from zoo.files.of_model import WEIGHTS, WEIGHTS_INDEX
    from zoo.publishing.pushing import push
    from zoo.store.files import Store, StoreError
    from zoo.store.found_weights import find_weights

    if output is not None:
        _check_manifest(output)
    registry, place = registries(), str(address)
    weights = find_weights(model, registry).path
    if weights.name not in (WEIGHTS, WEIGHTS_INDEX):
        hint = f"`zoo bundle make {typed(weights)} DIR` makes one of it"
        raise StoreError(f"{quoted(weights)} is not the folder of a model", help=hint)
    store = Store.default()
    shown = partial(_written, place)
    pushed = push(
        weights.parent,
        place,
        registry,
        store,
        license,
        manifest_folder=None if output is None else output.parent,
        writing=shown,
    )
    if pushed.left_out:
        print_text(f"left out: {', '.join(pushed.left_out)}", err=True)
    problems: list[Problem] = []
    report: dict[str, Any] = {"path": None, "text": pushed.text, "left_out": pushed.left_out}
    if output is not None:
        with noted(problems):
            write_text(output, pushed.text)
            report["path"] = str(output)
    # Without a file, its text is printed: nobody could pull without it.
    print_report(as_json, report, lambda r: r["path"] or r["text"].removesuffix("\n"))
    if problems:
        raise ZooError(problems)


def _check_manifest(path: Path) -> None:
    """Check the path of the model's file before anything is pushed. Raises `StoreError` if nobody
    could pull by this file, or if it is that of another model."""
    from zoo.registering.catalog import model_of
    from zoo.store.files import StoreError

    if model_of(path.name) is None or os.path.isdir(path):
        message = f"{quoted(path)} is not the name of a model's file"
        allowed = "up to 128 of the letters A to Z and a to z, digits, `.`, `_` and `-`"
        hint = f"it is that of the model and `.toml`, as `tiny.v1.toml`; a name has {allowed}"
        raise StoreError(message, help=hint)
    if os.path.exists(path):
        message = f"{quoted(path)} is there already"
        hint = "a version of a model has a name of its own, and so a file"
        raise StoreError(message, help=hint)


@contextmanager
def _written(address: str, n_bytes: int) -> Generator[Callable[[int], None]]:
    with bytes_bar(address, n_bytes) as bar:
        yield bar.advance


@click.command()
@click.argument("names", nargs=-1, type=model_type)
@click.option("--fingerprint", is_flag=True, help="Also run each model, and compare its outputs.")
@json_option
@click.pass_obj
def verify(
    registries: Registries, names: tuple[str, ...], fingerprint: bool, as_json: bool
) -> None:
    """Check models in the store by their digests.

    Without NAMES, all are checked. Problems are reported at the end.
    """
    from zoo.store.files import Store
    from zoo.store.refs import versions

    registry, store = registries(), Store.default()
    problems: list[Problem] = []
    if names:
        found = _versions(names, registry, store, problems)
    else:
        found = list(versions(store))
        if not found and not as_json:
            click.echo("there are no models in the store")
    rows: list[dict[str, Any]] = []
    for name, version in found:
        line = f"{name}@{version}: cannot be checked"
        row: dict[str, Any] = {"name": name, "version": version, "right": False}
        with noted(problems):
            verdict = _verdict(name, version, registry, store, fingerprint)
            if verdict is None:  # removed meanwhile
                continue
            line = _verdict_text(verdict, fingerprint)
            row |= {"right": verdict.is_right, "damaged": list(verdict.damaged)}
            row |= {"stated": verdict.stated}
            row |= {"difference": verdict.difference, "tolerance": verdict.tolerance}
            problems += [] if verdict.is_right else [_wrong(verdict)]
        rows.append(row)
        if not as_json:
            print_text(line)
    if as_json:
        print_json(rows)
    if problems:
        raise ZooError(problems)


def _versions(
    names: tuple[str, ...], registry: Registry, store: Store, problems: list[Problem]
) -> list[tuple[str, str]]:
    """Return the names and versions of the models in the store that `names` mean, each once, and
    add a problem for each that means none."""
    from zoo.store.files import StoreError
    from zoo.store.lookup import stored_versions

    found: dict[tuple[str, str], None] = {}
    for name in names:
        with noted(problems):
            meant = stored_versions(name, registry, store)
            found.update(dict.fromkeys(meant))
            if not meant:
                hint = "`zoo pull` brings a model there, `zoo store` lists what is there"
                if os.path.exists(name):
                    hint = "`zoo bundle verify` checks a folder, `zoo load` any saved model"
                raise StoreError(f"{quoted(name, PATH)} is not in the store", help=hint)
    return list(found)


def _verdict(
    name: str, version: str, registry: Registry, store: Store, fingerprint: bool
) -> Verdict | None:
    """Check a model, and return the verdict; None if it is gone. Raises `ZooError` if its ref is
    damaged, or if it cannot be built or loaded."""
    from zoo.publishing.checking import verify
    from zoo.store.refs import read_ref

    ref = read_ref(store, name, version)
    if ref is None:
        return None
    with bytes_bar(ref.name, ref.n_bytes) as bar:
        return verify(ref, store, registry, fingerprint=fingerprint, on_bytes=bar.advance)


def _wrong(verdict: Verdict) -> Problem:
    name, full = verdict.ref.name, f"{verdict.ref.name}@{verdict.ref.version}"
    if verdict.damaged:
        hint = f"`zoo pull {name}` mends it"
        if not verdict.is_stated:
            hint = f"no registry states this version of {name}: `zoo rm {full}` removes it"
        return Problem(f"{full} is damaged", help=hint)
    hint = "the bytes are right: a plugin, torch or the zoo is not what it was published with"
    return Problem(f"{name} does not compute what its fingerprint says", help=hint)


def _verdict_text(verdict: Verdict, fingerprint: bool) -> str:
    ref = verdict.ref
    if verdict.damaged:
        return f"{ref.name}@{ref.version}: damaged: {', '.join(verdict.damaged)}"
    size = f"{counted(len(ref.files), 'file')}, {human_bytes(ref.n_bytes)}"
    told = f"{ref.name}@{ref.version}: {size}: intact"
    if not verdict.is_stated:
        told = f"{told} by the digests in the store; {_stated_instead(verdict)}"
    if verdict.difference is not None:
        return f"{told}; outputs within {verdict.difference:.1e} (allowed: {verdict.tolerance:.1e})"
    return f"{told}; no fingerprint is known" if fingerprint else told


def _stated_instead(verdict: Verdict) -> str:
    name = verdict.ref.name
    if verdict.stated is None:
        return f"no registry states digests of {name}"
    return f"the registry states {name}@{verdict.stated}"


@click.command()
@click.argument("names", nargs=-1, required=True, type=model_type)
@click.option("--forget", is_flag=True, help="Also forget the digests of its first use.")
@json_option
@click.pass_obj
def rm(registries: Registries, names: tuple[str, ...], forget: bool, as_json: bool) -> None:
    """Remove models from the store.

    NAMES may have a version, as in `NAME@VERSION`. `zoo gc` frees the space. Problems are reported
    at the end.
    """
    from zoo.store.files import Store, StoreError
    from zoo.store.first_use import forget as forget_first_use
    from zoo.store.lookup import stored_versions

    registry, store = registries(), Store.default()
    problems: list[Problem] = []
    report: dict[str, list[Any]] = {"removed": [], "forgotten": []}
    for name in names:
        with noted(problems):
            found = stored_versions(name, registry, store)
            full = registry.catalog.full_name(name.partition("@")[0])
            forgotten = forget and forget_first_use(store, full)
            if not found and not forgotten:
                hint = "`zoo store` lists what is there"
                raise StoreError(f"{quoted(name, PATH)} is not in the store", help=hint)
            for of, version in found:
                row = _remove(store, of, version)
                report["removed"].append(row)
                if not as_json:
                    print_text(_removed_text(row))
            if forgotten:
                report["forgotten"].append(full)
                if not as_json:
                    print_text(f"forgot what {full} was on first use")
    if as_json:
        print_json(report)
    if problems:
        raise ZooError(problems)


def _remove(store: Store, name: str, version: str) -> dict[str, Any]:
    """Remove a model, and return what is said of it; its `bytes` are None if its ref is damaged.
    Raises `StoreError` if it cannot be removed."""
    from zoo.store.refs import DamagedRefError, read_ref, remove_ref

    try:
        ref = read_ref(store, name, version)
    except DamagedRefError:
        ref = None
    remove_ref(store, name, version)
    return {"name": name, "version": version, "bytes": None if ref is None else ref.n_bytes}


def _removed_text(row: Mapping[str, Any]) -> str:
    freed = "its space" if row["bytes"] is None else f"up to {human_bytes(row['bytes'])}"
    return f"removed {row['name']}@{row['version']}; `zoo gc` frees {freed}"


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also files written a moment ago, which another process may still need.",
)
@json_option
def gc(folders: tuple[Path, ...], everything: bool, as_json: bool) -> None:
    """Delete files in the store that no model uses any more.

    In FOLDERS, the temporary files of killed commands are deleted too.
    """
    from zoo.store.collecting import GRACE, NO_GRACE, collect, sweep
    from zoo.store.files import Store

    grace = NO_GRACE if everything else GRACE
    freed = [collect(Store.default(), grace=grace), *(sweep(f, grace=grace) for f in folders)]
    report = {"files": sum(f.files for f in freed), "bytes": sum(f.n_bytes for f in freed)}
    print_report(as_json, report, _freed_text)
    for one in freed:
        one.check()


def _freed_text(report: Mapping[str, int]) -> str:
    return f"{counted(report['files'], 'file')} removed, {human_bytes(report['bytes'])} freed"


@click.command()
@json_option
def store(as_json: bool) -> None:
    """List the models in the store, with their sizes."""
    from zoo.store.files import Store
    from zoo.store.refs import read_ref, versions

    found = Store.default()
    there: list[Ref] = []
    problems: list[Problem] = []
    for name, version in versions(found):
        with noted(problems):
            ref = read_ref(found, name, version)
            there += [ref] if ref else []  # None: removed meanwhile
    rows = [_row(ref, found.snapshot(ref.files)) for ref in there]
    data = {"folder": str(found.root), "models": rows}
    print_report(as_json, data, lambda _: _listing(found.root, there))
    if problems:
        raise ZooError(problems)


def _listing(root: Path, there: list[Ref]) -> str:
    names = [f"{ref.name}@{ref.version}" for ref in there]
    width = max(map(len, names), default=0)
    lines = [
        f"  {name:<{width}}  {human_bytes(ref.n_bytes):>9}"
        for name, ref in zip(names, there, strict=True)
    ]
    once = {file.sha256: file.size for ref in there for file in ref.files.values()}
    total = f"{counted(len(there), 'model')}, {human_bytes(sum(once.values()))}"
    return "\n".join([str(root), *lines, total])


def _row(ref: Ref, folder: Path) -> dict[str, Any]:
    return {
        "name": ref.name,
        "version": ref.version,
        "bytes": ref.n_bytes,
        "content_digest": ref.content_digest,
        "source": dict(ref.source),
        "folder": str(folder),
    }
