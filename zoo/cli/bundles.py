"""Commands for models on disk: `zoo load`, `zoo lock`, `zoo bundle make`, `verify` and `sign`."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoo.cli.options import (
    Registries,
    dtype_choice,
    folder_option,
    json_option,
    max_shard_bytes_option,
    model_type,
    path_type,
)
from zoo.cli.output import print_report
from zoo.errors import Place, WeightsError
from zoo.wording import counted

if TYPE_CHECKING:
    from zoo.bundle import Bundle
    from zoo.provenance.lock import Lock
    from zoo.provenance.plugins import Replaced


@click.command()
@click.argument("model", type=model_type)
@click.option("--report", is_flag=True, help="Say for each tensor what was done.")
@click.option(
    "--only",
    metavar="PATTERN",
    multiple=True,
    help="Load the tensors with such names (`encoder.*`); the others get their initial values.",
)
@click.option(
    "--dtype",
    type=dtype_choice,
    help="Cast floating-point tensors.  [default: as stored]",
)
@click.option("--no-verify", is_flag=True, help="Do not check the digests of the tensors.")
@click.option(
    "--read",
    type=click.Choice(["bytes", "mmap"]),
    help="Copy the tensors into memory, or map the files.  [default: map read-only files]",
)
@click.option(
    "--locked", is_flag=True, help="Refuse versions other than those of the bundle's zoo.lock."
)
@click.option(
    "--content-digest", metavar="SHA256", help="Refuse weights of another content digest."
)
@click.option("--spec-digest", metavar="SHA256", help="Refuse a spec of another digest.")
@json_option
@click.pass_obj
def load(
    registries: Registries,
    model: str,
    report: bool,
    only: tuple[str, ...],
    dtype: str | None,
    no_verify: bool,
    read: Any,
    locked: bool,
    content_digest: str | None,
    spec_digest: str | None,
    as_json: bool,
) -> None:
    """Load a model, as `zoo.load` does, and report how.

    MODEL is a weights file or its folder, a bundle, or a model's name. Plugins that have changed
    since the weights were made are named.
    """
    registry = registries()

    from zoo.loading import load as load_model
    from zoo.provenance.plugins import ReplacedPluginWarning, replaced_plugins

    gc.enable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplacedPluginWarning)  # the report says it
        loaded = load_model(
            model,
            dtype=dtype,
            verify=not no_verify,
            only=only or None,
            read=read,
            locked=locked,
            content_digest=content_digest,
            spec_digest=spec_digest,
            registry=registry,
        )
    told = loaded.load_report
    assert told is not None  # `load` sets it
    replaced = replaced_plugins(loaded.spec, told.plugins)
    data = {**told.data(), "replaced_plugins": [one._asdict() for one in replaced]}
    if not report:
        data["tensors"] = len(told.tensors)
    lines = [told.text() if report else told.summary(), *_replaced_text(replaced)]
    print_report(as_json, data, lambda _: "\n".join(lines))


def _replaced_text(replaced: Iterable[Replaced]) -> Iterator[str]:
    """Yield one line for all plugins that were replaced in the same way, for example by another
    version of the zoo."""
    alike: dict[tuple[str | None, str], list[str]] = {}
    for one in replaced:
        alike.setdefault((one.made_with, one.now), []).append(one.plugin)
    for (before, now), names in alike.items():
        yield f"made with {before or 'another plugin'}, loaded with {now}: {', '.join(names)}"


@click.command()
@click.argument("spec", type=model_type)
@folder_option("-o", "--output", help="Folder for the zoo.lock.  [default: that of SPEC]")
@json_option
@click.pass_obj
def lock(registries: Registries, spec: str, output: Path | None, as_json: bool) -> None:
    """Record in a zoo.lock what a spec is built with.

    `zoo build --locked` then refuses anything else. SPEC is a file. A folder has one lock: that of
    another spec is replaced, and named.
    """
    from zoo.files.atomic import write_text
    from zoo.provenance.lock import LOCK_NAME, lock_of
    from zoo.reading import read_spec

    found = read_spec(Path(spec), registry=registries())
    folder = output if output is not None else Path(spec).parent
    replaced = _replaced_lock(folder)
    write_text(folder / LOCK_NAME, lock_of(found).to_text())
    if replaced is not None and replaced.name != found.name:
        click.echo(f"replaced the lock of {replaced.name}", err=True)
    report = {
        "path": str(folder / LOCK_NAME),
        "name": found.name,
        "spec_digest": found.digest,
        "replaced": None if replaced is None else replaced.name,
    }
    print_report(as_json, report, lambda r: r["path"])


def _replaced_lock(folder: Path) -> Lock | None:
    """Return the lock in a folder, or None if there is none, or a damaged one. Raises
    `WeightsError` for the lock of a bundle."""
    from zoo.provenance.lock import LOCK_NAME, read_lock

    try:
        lock = read_lock(folder)
    except WeightsError:
        return None
    if lock.files:
        message = "this is the lock of a bundle, which is never changed"
        hint = "`-o DIR` writes the lock of the spec into another folder"
        raise WeightsError(message, Place(str(folder / LOCK_NAME)), hint)
    return lock


@click.group()
def bundle() -> None:
    """Make, sign and check bundles.

    A bundle is a folder with a model and everything that belongs to it.
    """


@bundle.command()
@click.argument("model", type=path_type, metavar="WEIGHTS")
@click.argument("folder", type=path_type, metavar="DIR")
@click.option("--license", help="The licence of the weights, such as `apache-2.0`.")
@click.option("--tag", "tags", multiple=True, help="A tag for the model card.")
@click.option(
    "--card",
    type=path_type,
    help="A model card to use as it is.  [default: the README.md beside WEIGHTS, unless --license "
    "or --tag is given; otherwise a new one]",
)
@click.option(
    "--tokenizer",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder of the tokenizer's files.  [default: that of WEIGHTS]",
)
@click.option(
    "--source",
    metavar="NAME@REVISION",
    help="Where the weights were first published; recorded, and not used.",
)
@max_shard_bytes_option
@json_option
@click.pass_obj
def make(
    registries: Registries,
    model: Path,
    folder: Path,
    license: str | None,
    tags: tuple[str, ...],
    card: Path | None,
    tokenizer: Path | None,
    source: str | None,
    max_shard_bytes: int | None,
    as_json: bool,
) -> None:
    """Make the bundle DIR from saved WEIGHTS.

    It gets the spec, a model card, the tokenizer beside the weights, and a zoo.lock.
    """
    from zoo.bundle import write_bundle
    from zoo.provenance.card import CARD_NAME, CardFields, warn_of_other_license
    from zoo.provenance.lock import Upstream
    from zoo.weights.file import weights_path

    own = weights_path(model).parent / CARD_NAME
    if card is None and license is None and not tags and os.path.isfile(own):
        card = own
    if card is None and license is not None:
        warn_of_other_license(license, own)
    made = write_bundle(
        model,
        folder,
        registry=registries(),
        card=CardFields(license or "unknown", tags) if card is None else card,
        companions=tokenizer,
        source=None if source is None else Upstream.parse(source),
        max_shard_bytes=max_shard_bytes,
    )
    _print_bundle(made, as_json)


@bundle.command()
@click.argument("folder", type=path_type, metavar="DIR")
@click.option(
    "--key",
    type=path_type,
    metavar="PEM",
    help="Check the signature with this public key.",
)
@json_option
def verify(folder: Path, key: Path | None, as_json: bool) -> None:
    """Check the bundle DIR, and with --key its signature.

    It must have exactly the files of its zoo.lock, with the right bytes. The model is not built.
    """
    if key is None:
        from zoo.bundle import read_bundle

        _print_bundle(read_bundle(folder), as_json)
        return
    from zoo.signing import verify_signature

    _print_bundle(verify_signature(folder, key), as_json, signature="checked")


@bundle.command()
@click.argument("folder", type=path_type, metavar="DIR")
@click.option(
    "--key",
    type=path_type,
    metavar="PEM",
    required=True,
    help="A private key on an elliptic curve, without a password.",
)
@json_option
def sign(folder: Path, key: Path, as_json: bool) -> None:
    """Sign the bundle DIR, offline, with a key of your own.

    This needs the extra `sign`.
    """
    from zoo.bundle import SIGNATURE_NAME
    from zoo.signing import sign_bundle

    sign_bundle(folder, key)
    report = {"path": str(folder / SIGNATURE_NAME)}
    print_report(as_json, report, lambda r: r["path"])


def _print_bundle(bundle: Bundle, as_json: bool, signature: str | None = None) -> None:
    lock = bundle.lock
    if signature is None:
        signature = "not checked" if bundle.is_signed else "none"
    data = {
        "path": str(bundle.path),
        "name": lock.name,
        "spec_digest": lock.spec,
        "content_digest": lock.content,
        "files": {name: {"sha256": f.sha256, "size": f.size} for name, f in lock.files.items()},
        "signature": signature,
    }
    told = f"{lock.name}: {counted(len(lock.files), 'file')}, signature: {signature}"
    print_report(as_json, data, lambda _: f"{told}\n{bundle.path}\n{lock.content}")
