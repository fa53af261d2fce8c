"""Bundles: a folder with a model and all that belongs to it, described by its `zoo.lock`.

    spec.toml            the resolved spec, as in the weights
    model.safetensors    the weights, or shards with their index
    README.md            the model card
    tokenizer.json ...   the other files of the model (`zoo.files.of_model.BESIDES`)
    zoo.lock             the digest of each file, and the versions that made the model
    model.sig            a signature, if it was signed

It must hold no other files. No file of a bundle is code, and none is run. Needs no torch.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zoo.document import read_document
from zoo.errors import Place, Problem, SpecError, WeightsError
from zoo.files.atomic import copy_synced, make_folder, new_folder, write_text
from zoo.files.of_model import BESIDES, WEIGHTS, WEIGHTS_INDEX, find_files, link_problem, selected
from zoo.machine.threads import on_all_cores
from zoo.provenance.card import CARD_NAME, CardFields, card_text, read_card
from zoo.provenance.lock import LOCK_NAME, FileRecord, Lock, Upstream, read_lock, torch_version
from zoo.reading import spec_of_weights
from zoo.registry import Registry
from zoo.weights.file import Header, changed_tensors
from zoo.weights.open_file import cannot_read
from zoo.weights.output_names import check_output_name
from zoo.weights.reader import Weights, open_weights
from zoo.weights.writer import destination
from zoo.wording import quoted

SPEC_NAME = "spec.toml"
SIGNATURE_NAME = "model.sig"
_SHARD = re.compile(r"model-[0-9a-f]{12}-\d{5}-of-\d{5}\.safetensors")

_AGAIN = "a bundle is never changed: take it again from where it came from, or make another"
"""The help for files that are not those of the lock."""


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files agree with its lock."""

    path: Path
    lock: Lock
    header: Header

    @property
    def is_signed(self) -> bool:
        """Whether the bundle has a signature, which `zoo.signing` checks."""
        return (self.path / SIGNATURE_NAME).exists()


def lock_of_bundle(path: Path) -> Lock | None:
    """Return the lock in a folder if it is that of a bundle; the lock of a spec lists no files.

    Raises:
        WeightsError: the lock is damaged.
    """
    if not os.path.lexists(path / LOCK_NAME):
        return None
    lock = read_lock(path)
    return lock if lock.files else None


def is_bundle(path: Path) -> bool:
    """Return whether a folder has the lock of a bundle, which is not damaged."""
    try:
        return lock_of_bundle(path) is not None
    except WeightsError:
        return False


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and check all of it: that its files are exactly those of its lock, that their
    bytes are unchanged, and that spec, weights and lock belong to the same model.

    Args:
        path: its folder.

    Raises:
        WeightsError: a check failed; all problems are reported.
    """
    lock = read_lock(path)
    check_files(path, lock, lock.files)
    with open_weights(path) as weights:
        check_weights(path, lock, weights)
        return Bundle(path, lock, weights.header)


def check_files(path: Path, lock: Lock, hashed: Iterable[str]) -> None:
    """Check the files of a bundle against its lock: their names, types and sizes, and the SHA-256
    of those in `hashed`, on all cores.

    Raises:
        WeightsError: a check failed; all problems are reported.
    """
    if problems := list(_file_problems(path, lock)):
        raise WeightsError(problems)
    sizes = {name: lock.files[name].size for name in hashed}
    problems = [
        Problem("its bytes differ from those recorded in zoo.lock", Place(str(path / name)), _AGAIN)
        for name, record in _records(path, sizes).items()
        if record != lock.files[name]
    ]
    if problems:
        raise WeightsError(problems)


def _file_problems(path: Path, lock: Lock) -> Iterator[Problem]:
    place = Place(str(path / LOCK_NAME))
    for name in lock.files:
        if not _belongs(name):
            yield Problem(
                f"zoo.lock lists {quoted(name)}, which does not belong in a bundle", place
            )
    for name in (SPEC_NAME, CARD_NAME):
        if name not in lock.files:
            yield Problem(f"zoo.lock does not list `{name}`", place)
    if (WEIGHTS in lock.files) == (WEIGHTS_INDEX in lock.files):
        yield Problem(f"zoo.lock lists either `{WEIGHTS}` or `{WEIGHTS_INDEX}`", place)
    found = _entries(path, {name.rpartition("/")[0] for name in lock.files if _belongs(name)})
    for name in sorted(found.keys() | lock.files.keys() - {LOCK_NAME, SIGNATURE_NAME}):
        where = Place(str(path / name))
        if name not in found:
            yield Problem("listed in zoo.lock, but missing", where, _AGAIN)
        elif name not in lock.files and name not in (LOCK_NAME, SIGNATURE_NAME):
            yield Problem("not listed in zoo.lock", where, "a bundle has no other files")
        elif not stat.S_ISREG(found[name].st_mode):
            yield Problem("a bundle holds regular files only", where)
        elif name in lock.files and found[name].st_size != lock.files[name].size:
            size, locked = found[name].st_size, lock.files[name].size
            yield Problem(f"{size:,} bytes long; zoo.lock says {locked:,}", where, _AGAIN)


def _entries(path: Path, folders: set[str]) -> dict[str, os.stat_result]:
    """Return the entries of a folder, by paths with `/`. Each of its subfolders named in `folders`
    is replaced by its own entries."""
    found: dict[str, os.stat_result] = {}
    for folder in sorted(folders | {""}):
        if folder and not (folder in found and stat.S_ISDIR(found[folder].st_mode)):
            continue
        try:
            with os.scandir(path / folder) as entries:
                inside = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
        except OSError as error:
            raise cannot_read(error, Place(str(path / folder))) from None
        found |= {f"{folder}/{name}" if folder else name: entry for name, entry in inside.items()}
        found.pop(folder, None)
    return found


def _belongs(name: str) -> bool:
    return name in (SPEC_NAME, CARD_NAME) or is_weights(name) or selected(name, BESIDES)


def is_weights(name: str) -> bool:
    """Return whether a file of a bundle holds weights."""
    return name in (WEIGHTS, WEIGHTS_INDEX) or _SHARD.fullmatch(name) is not None


def check_weights(path: Path, lock: Lock, weights: Weights) -> None:
    """Check the weights of a bundle, and the `spec.toml` beside them, against its lock.

    Raises:
        WeightsError: they do not belong to the same model.
    """
    header = weights.header
    place = Place(str(path / LOCK_NAME))
    told = {
        "weights": (lock.header, header.json_sha256),
        "content digest": (lock.content, header.content_digest),
        "spec": (lock.spec, header.spec_digest),
        "model's name": (lock.name, header.spec.get("name")),
        "plugins": (dict(lock.plugins), header.plugins),
        "zoo's version": (lock.zoo, header.zoo),
    }
    problems = [
        Problem(f"the lock's {what} is not that of the weights", place)
        for what, (locked, found) in told.items()
        if locked != found
    ]
    listed = {name for name in lock.files if is_weights(name)}
    if {file.name for file in weights.paths} != listed:
        problems.append(Problem("the lock's files are not those of the weights", place))
    if not _same_spec(path / SPEC_NAME, header):
        where = Place(str(path / SPEC_NAME))
        problems.append(Problem("the spec is not that of the weights beside it", where))
    if problems:
        raise WeightsError(problems)


def _same_spec(path: Path, header: Header) -> bool:
    import rfc8785

    try:
        canonical = rfc8785.dumps(read_document(path).data)
    except SpecError as error:
        raise WeightsError(error.problems) from None
    except rfc8785.CanonicalizationError:  # a date, or infinity
        return False
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}" == header.spec_digest


def write_bundle(
    saved: Path,
    folder: Path,
    *,
    registry: Registry,
    card: CardFields | Path,
    companions: Path | None = None,
    source: Upstream | None = None,
    max_shard_bytes: int | None = None,
) -> Bundle:
    """Make a bundle of saved weights, which are checked while they are copied.

    Args:
        saved: a weights file, an index, or the folder of one.
        folder: the path of the bundle, which must not exist or be an empty folder.
        registry: looks up the plugins of the spec.
        card: the contents of the model card, or the path of a finished card.
        companions: a folder whose tokenizer and other `BESIDES` are copied; by default that of the
            weights.
        source: where the weights were first published.
        max_shard_bytes: as in `zoo.save`.

    Raises:
        WeightsError: the weights are damaged, `folder` is named like a file, `companions` holds no
            file of a model, or a file to be copied is a link that leads out of its folder.
        SpecError, PluginError: their spec cannot be built with the registered plugins.
        ZooError: the bundle cannot be written, or the card has no metadata block.
    """
    from zoo.showing.full_form import to_toml

    check_output_name(folder, folder=True)
    with new_folder(folder) as new, open_weights(saved) as weights:
        header = weights.header
        spec = spec_of_weights(header, f"{saved} (its spec)", registry)
        with destination(new, max_shard_bytes=max_shard_bytes) as write:
            write(header, lambda name: _checked(weights, name))
        write_text(new / SPEC_NAME, to_toml(header.spec))
        copied = _copy_files(weights.path.parent if companions is None else companions, new)
        if companions is not None and not copied:
            raise WeightsError(f"nothing in {quoted(companions)} belongs to a model")
        lock = Lock(
            name=spec.name,
            zoo=header.zoo,
            torch=torch_version(),
            spec=header.spec_digest,
            plugins=header.plugins,
            content=header.content_digest,
            header=header.json_sha256,
            source=source,
        )
        text = read_card(card) if isinstance(card, Path) else card_text(spec, lock, card)
        write_text(new / CARD_NAME, text)
        paths = sorted(path for path in new.rglob("*") if path.is_file())
        sizes = {path.relative_to(new).as_posix(): path.stat().st_size for path in paths}
        # The files are read again, all at once: their digests are of what the file system returns.
        lock = replace(lock, files=_records(new, sizes))
        write_text(new / LOCK_NAME, lock.to_text())
        lock = read_lock(new)
        check_files(new, lock, ())  # whose digests were just computed
        with open_weights(new) as written:
            check_weights(new, lock, written)
    return Bundle(folder, lock, written.header)


def _copy_files(folder: Path, new: Path) -> list[str]:
    """Copy the files of a model beside its weights, and return their names. Raises `WeightsError`
    for links that lead out of the folder."""
    names = find_files(folder, BESIDES)
    if problems := [problem for name in names if (problem := link_problem(folder, name))]:
        raise WeightsError(problems)
    for name in names:
        make_folder((new / name).parent)
        copy_synced(folder / name, new / name)
    return names


def _checked(weights: Weights, name: str) -> Iterator[memoryview]:
    """Yield the bytes of a tensor, and raise `WeightsError` at the end if their digest is wrong."""
    sha256 = hashlib.sha256()
    for part in weights.steps(name):
        sha256.update(part)
        yield part
    if sha256.hexdigest() != weights.header.records[name].sha256:
        raise changed_tensors([name], Place(str(weights.path)))


def _records(folder: Path, sizes: Mapping[str, int]) -> dict[str, FileRecord]:
    """Return the records of files in a folder, hashed on all cores. `sizes` are theirs, by name."""
    return on_all_cores(lambda name: _record(folder / name), sizes)


def _record(path: Path) -> FileRecord:
    """Return the SHA-256 and size of a file. Raises `WeightsError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return FileRecord(sha256, file.tell())
    except OSError as error:
        raise cannot_read(error, Place(str(path))) from None
