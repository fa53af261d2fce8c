"""Named models are pulled, verified, found again without a request, and removed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hostile import joined, parts
from published_models import LOCAL, SPEC, bundle, entry, register, sha256, weights, write_files
from trials import Refused, contents, on_terminal, process, python, without_privileges
from word_tokenizers import word_tokenizer

import zoo
from zoo.cli import run
from zoo.publishing.checking import verify
from zoo.source import Access
from zoo.store.collecting import NO_GRACE, _abandoned, restored
from zoo.store.files import Store, StoreError, digests
from zoo.store.first_use import forget, record, with_trusted
from zoo.store.pretrained import DeprecatedName, File, find_pretrained
from zoo.store.refs import Ref, refs, write_ref
from zoo.weights.open_file import OpenFile
from zoo.weights.reader import Weights, open_weights
from zoo_sources.local import Local


def size_of_bundle() -> str:
    """The bytes of the files of `bundle()`, as commands print them."""
    n_bytes = sum(map(len, bundle().values()))
    assert 1000 <= n_bytes < 999_000
    return f"{n_bytes / 1000:.1f} kB"


@pytest.fixture
def published(project: Path, store: Store) -> Path:
    """Return the folder of a model that is registered as `small.v1`, with the alias `small`."""
    folder = project / "published"
    write_files(folder, bundle())
    register(project, "small.v1", entry(LOCAL, bundle()))
    names = 'format = 1\n[default]\nsmall = "v1"\n[alias]\nwee = "small.v1"\n'
    names += '[deprecated]\ntiny = "small.v1"\n'
    (project / "models" / "names.toml").write_text(names)
    return folder


def stored_files(store: Store) -> dict[str, bytes]:
    return {path: content for path, content in contents(store.root).items() if content}


def test_a_named_model_is_what_was_published(published: Path) -> None:
    loaded, original = zoo.load("small.v1"), zoo.load(published)
    for (name, one), (_, two) in zip(
        loaded.state_dict().items(), original.state_dict().items(), strict=True
    ):
        assert one.equal(two), name


LOAD = """
import sys, zoo
zoo.load("small.v1")
print(*(name for name in ("tomlkit", "zoo.store.pulling") if name in sys.modules))
"""


def test_a_model_in_the_store_is_loaded_without_what_pulls_it(published: Path) -> None:
    imported = []
    for _ in range(2):
        imported.append(python(LOAD).split())
    assert imported == [["zoo.store.pulling"], []]


@pytest.mark.parametrize("name", ["small", "small.v1", "wee"])
def test_a_model_has_other_names(name: str, published: Path) -> None:
    assert zoo.load(name).spec.name == "small"


def test_a_name_out_of_use_tells_the_new_one(published: Path) -> None:
    with pytest.warns(DeprecatedName, match=r"`tiny` is out of use: use `small\.v1`"):
        assert zoo.load("tiny").spec.name == "small"


@pytest.mark.parametrize("command", ["pull tiny", "show tiny", "verify tiny", "rm tiny"])
def test_every_command_tells_the_new_name(command: str, published: Path) -> None:
    assert run(["pull", "small"]) == 0
    with pytest.warns(DeprecatedName, match=r"`tiny` is out of use: use `small\.v1`") as warned:
        assert run(command.split()) == 0
    assert len(warned) == 1


def test_what_is_in_the_store_needs_the_source_no_more(published: Path) -> None:
    before = zoo.load("small").spec.digest
    for path in published.iterdir():
        path.unlink()
    published.rmdir()
    assert zoo.load("small").spec.digest == before
    assert run(["pull", "small"]) == 0
    assert run(["verify", "small"]) == 0


def test_verify_reports_every_model_that_is_wrong(
    project: Path, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """One whose ref is damaged, one that is not there, one whose file in the registry is no TOML,
    one that is damaged itself: none keeps the others from being checked."""
    names = ["small.v1", "small.v2", "small.v3", "small.v4"]
    for seed, name in enumerate(names):
        write_files(published, bundle(seed))
        register(project, name, entry(LOCAL, bundle(seed)))
        assert run(["pull", name]) == 0
    by_name = {ref.name: ref for ref in refs(store)}
    full = {name: f"{name}@{ref.version}" for name, ref in by_name.items()}
    (store.root / "refs" / f"{full['small.v1']}.json").write_text("{")
    (project / "models" / "small.v2.toml").write_text("=")
    (store.snapshot(by_name["small.v3"].files) / "README.md").unlink()
    store.blob(by_name["small.v3"].files["README.md"].sha256).unlink()

    told = {
        "small.v1": (f"{full['small.v1']}: cannot be checked\n", "error: is damaged: "),
        "small.v2": (f"{full['small.v2']}: cannot be checked\n", "small.v2.toml:1:1: error: "),
        "small.v3": (f"{full['small.v3']}: damaged: README.md\n", f"{full['small.v3']} is damaged"),
        "small.v4": (f"{full['small.v4']}: 2 files, ", ""),
        "small.v5": ("", "error: `small.v5` is not in the store"),
    }
    for arguments, n_errors in (([], 3), (["small.v5", *names, "small.v4"], 4)):
        capsys.readouterr()
        assert run(["verify", "--fingerprint", *arguments]) == 2
        shown = capsys.readouterr()
        for name, (line, error) in told.items():
            if name in (arguments or names):
                assert line in shown.out
                assert error in shown.err
        assert len(shown.out.splitlines()) == len(names)
        assert shown.err.count("error: ") == n_errors
    assert run(["verify", "small.v4"]) == 0


def test_pulls_and_verdicts_as_json(
    project: Path, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    register(project, "small.v2", entry(LOCAL, bundle()))
    capsys.readouterr()
    assert run(["pull", "small.v1", "small.v2", "small.v9", "--json"]) == 2
    pulled = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in pulled] == ["small.v1", "small.v2"]
    assert run(["store", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == pulled
    first = store.root / "refs" / f"small.v1@{pulled[0]['version']}.json"
    first.write_text("{")
    (Path(pulled[1]["folder"]) / "README.md").unlink()
    assert run(["verify", "--json"]) == 2
    one, other = json.loads(capsys.readouterr().out)
    assert one == {"name": "small.v1", "version": pulled[0]["version"], "right": False}
    assert (other["right"], other["damaged"]) == (False, ["README.md"])
    assert run(["verify", "small.v2", "--json"]) == 2
    assert run(["pull", "small.v2"]) == 0
    capsys.readouterr()
    assert run(["verify", "small.v2", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "name": "small.v2",
        "version": pulled[1]["version"],
        "right": True,
        "damaged": [],
        "stated": pulled[1]["version"],
        "difference": None,
        "tolerance": None,
    }


def test_a_pull_that_fails_keeps_no_other_from_being_pulled(
    project: Path, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(published, bundle(1))
    register(project, "small.v2", entry(LOCAL, bundle(2)))  # other digests than the files have
    register(project, "small.v3", entry(LOCAL, bundle(1)))
    assert run(["pull", "small.v2", "small.v3", "small.v4"]) == 2
    shown = capsys.readouterr()
    assert [ref.name for ref in refs(store)] == ["small.v3"]
    assert shown.out.startswith("small.v3@")
    assert "small.v2" not in shown.out
    assert "small.v2" in shown.err
    assert "small.v4" in shown.err
    assert shown.err.count("error: ") == 2


def test_a_damaged_ref_keeps_no_other_model_from_being_listed(
    published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small"]) == 0
    (ref,) = refs(store)
    damaged = store.root / "refs" / "small.v0@0123456789abcdef.json"
    damaged.write_text("{")
    capsys.readouterr()
    assert run(["store"]) == 2
    shown = capsys.readouterr()
    assert f"  {ref.name}@{ref.version}  " in shown.out
    assert shown.out.splitlines()[-1].startswith("1 model, ")
    assert f"{damaged}: error: is damaged: " in shown.err


@pytest.mark.parametrize("how", ["writable", "bytes", "only", "without blake3", "another spec"])
def test_other_weights_in_the_place_of_those_that_were_pulled(
    how: str, published: Path, store: Store
) -> None:
    """They are whole, and all their tensors are as their header says."""
    assert run(["pull", "small"]) == 0
    (ref,) = refs(store)
    path = store.snapshot(ref.files) / "model.safetensors"
    path.unlink()
    if how == "another spec":  # of the same tensors
        zoo.save(zoo.build(SPEC + "dropout = 0.5\n"), path)
    else:
        path.write_bytes(bundle(seed=1)["model.safetensors"])
    path.chmod(0o644 if how in ("writable", "another spec") else 0o444)
    if how == "without blake3":  # as an earlier version of the zoo wrote it
        write_ref(store, replace(ref, blake3={}))
    options: dict[str, Any] = {"bytes": {"read": "bytes"}, "only": {"only": "*"}}.get(how, {})
    with pytest.raises(zoo.WeightsError, match="pulled"):
        zoo.load("small", **options)
    assert zoo.load(path)  # by its path, it is a file like any other


def test_training_goes_on_from_what_was_pulled_alone(
    project: Path, published: Path, store: Store
) -> None:
    assert run(["pull", "small"]) == 0
    tokenizer = word_tokenizer(["<pad>", "<s>", "</s>", "a", "b"], "a", single="<s> $A")
    tokenizer.save(str(project / "words.json"))
    (project / "text.txt").write_text("a b a\nb a b\n")
    recipe = {
        "format": 1,
        "name": "further",
        "model": "small",
        "data": {"kind": "text", "train": "text.txt"},
        "tokenizer": {"kind": "files", "source": "words.json"},
        "optimizer": {"kind": "sgd", "lr": 1e-3},
        "schedule": {"kind": "constant"},
        "training": {"steps": 1, "max_length": 8},
    }
    assert zoo.train(recipe, output="further")["steps"] == 1
    (ref,) = refs(store)
    path = store.snapshot(ref.files) / "model.safetensors"
    path.unlink()
    path.write_bytes(bundle(seed=1)["model.safetensors"])
    with pytest.raises(zoo.WeightsError, match="not the file that was pulled"):
        zoo.train(recipe, output="another")


@pytest.mark.parametrize("change", ["changed", "added", "removed"])
def test_a_file_beside_the_weights_in_the_store_is_as_it_was_pulled(
    change: str, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small"]) == 0
    (ref,) = refs(store)
    name = "chat_template.jinja" if change == "added" else "README.md"
    path = store.snapshot(ref.files) / name
    path.unlink(missing_ok=True)
    if change != "removed":
        path.write_text("another")
    for load in (zoo.load, zoo.TextModel.load):
        with pytest.raises(zoo.WeightsError, match=f"not as it was pulled: `{name}`"):
            load("small")
    assert zoo.load("small", verify=False)


def test_equal_bytes_are_stored_once(
    project: Path, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    register(project, "small.v2", entry(LOCAL, bundle()))
    assert run(["pull", "small.v1", "small.v2"]) == 0
    inodes = {path.stat().st_ino for path in store.root.rglob("model.safetensors")}
    inodes |= {path.stat().st_ino for path in store.blobs() if path.stat().st_size > 1000}
    assert len(inodes) == 1
    assert run(["store"]) == 0
    size = size_of_bundle()
    assert capsys.readouterr().out.endswith(f"\n2 models, {size}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with one small file."""
    write_files(tmp_path / "folder", {"spec.toml": b"x"})
    return tmp_path / "folder"


def test_of_two_who_add_a_file_at_once_one_name_is_left(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename onto another link to the same file has no effect."""
    files = digests(folder)
    blob, link = store.blob(files["spec.toml"].sha256), os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        if target.parent == blob.parent and not blob.exists():
            link(source, blob)

    monkeypatch.setattr(os, "link", link_twice)
    with store.work() as work:
        store.add(folder, files, work)
    assert list(blob.parent.iterdir()) == [blob]


@pytest.mark.parametrize("wrong", [b"", b"xy"])
def test_a_file_of_another_length_is_replaced(wrong: bytes, folder: Path, store: Store) -> None:
    files = digests(folder)
    blob = store.blob(files["spec.toml"].sha256)
    write_files(blob.parent, {blob.name: wrong})
    with store.work() as work:
        store.add(folder, files, work)
    assert blob.read_bytes() == b"x"


def test_a_damaged_snapshot_may_be_gone_before_it_is_removed(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process, which has found the damage too."""
    files = digests(folder)

    def found_by_another(snapshot: Path, files: dict[str, File]) -> list[str]:
        shutil.rmtree(snapshot)
        return [*files]

    with store.work() as work:
        store.add(folder, files, work)
        monkeypatch.setattr("zoo.store.files.damaged", found_by_another)
        store.add(folder, files, work)
    assert digests(store.snapshot(files)) == files


def test_a_file_system_that_cannot_sync_may_hold_the_store(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = digests(folder)

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    with store.work() as work:
        store.add(folder, files, work)
    assert digests(store.snapshot(files)) == files


def test_what_enters_the_store_is_on_disk_before_it_has_its_name(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is each name, before another is made below it."""
    write_files(folder, {"inner/words.json": b"y"})
    synced, changed, named = set[int](), set[int](), list[Path]()
    sync, rename, mkdir = os.fsync, Path.rename, Path.mkdir

    def inodes(paths: Iterable[Path]) -> set[int]:
        return {path.stat().st_ino for path in paths}

    def fsync(descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        synced.add(inode)
        changed.discard(inode)
        sync(descriptor)

    def made(self: Path, *options: Any, **more: Any) -> None:
        mkdir(self, *options, **more)
        changed.update(inodes([self.parent]))

    def renamed(self: Path, target: Path) -> Path:
        assert inodes([self, *self.rglob("*")]) <= synced
        assert not changed & inodes(target.parents)
        named.append(target)
        changed.update(inodes([target.parent]))
        return rename(self, target)

    files = digests(folder)
    with store.work() as work:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "mkdir", made)
        monkeypatch.setattr(Path, "rename", renamed)
        store.add(folder, files, work)
        monkeypatch.undo()
    assert named == [*(store.blob(file.sha256) for file in files.values()), store.snapshot(files)]
    assert not changed & inodes(path.parent for path in named)
    assert not work.exists()


def test_a_folder_that_cannot_have_its_name_in_the_store_is_told(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = digests(folder)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == store.snapshot(files):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    told = "cannot be written: Input/output error"
    with pytest.raises(StoreError, match=told), store.work() as work:
        store.add(folder, files, work)


def test_the_store_is_made_with_the_folders_around_it_by_several_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, files = Path.mkdir, digests(folder)

    def after_another(self: Path, *options: Any, **more: Any) -> None:
        if self.name == "blobs":
            mkdir(self)
        mkdir(self, *options, **more)

    monkeypatch.setattr(Path, "mkdir", after_another)
    store = Store(tmp_path / "of" / "a" / "user")
    with store.work() as work:
        store.add(folder, files, work)
    assert digests(store.snapshot(files)) == files


@pytest.mark.parametrize("target", ["file", "folder"])
def test_a_link_is_no_file_of_a_model(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README.md").symlink_to(tmp_path / target)
    with pytest.raises(zoo.ZooError, match=r"README\.md` is not a regular file"):
        digests(tmp_path / "model")


def test_stored_files_cannot_be_written_by_mistake(published: Path, store: Store) -> None:
    run(["pull", "small"])
    for path in store.blobs():
        assert stat.S_IMODE(path.stat().st_mode) & 0o222 == 0


def test_without_hard_links_stored_files_cannot_be_written_either(
    published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("os.link", no_link)
    model = zoo.load("small")
    assert model.load_report is not None
    assert model.load_report.read == "mmap"
    for path in (*store.blobs(), *store.root.glob("snapshots/*/*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o222 == 0


def test_the_mode_of_what_is_read_only_is_left_alone(
    published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to another user's blob has a mode that only that user may change."""
    assert run(["pull", "small"]) == 0

    def not_permitted(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("os.chmod", not_permitted)
    monkeypatch.setattr("os.utime", not_permitted)
    for path in store.root.glob("refs/*"):
        path.unlink()
    assert run(["pull", "small"]) == 0


@pytest.mark.parametrize("mode", [0o2770, 0o777])
def test_who_may_write_to_its_folder_shares_the_store(
    mode: int, project: Path, published: Path, store: Store
) -> None:
    """Whatever the umask of who is first, such as the usual one of 022."""
    store.root.mkdir()
    store.root.chmod(mode)
    register(project, "seen.v1", entry(LOCAL, None))
    umask = os.umask(0o077)
    try:
        assert run(["pull", "small", "seen.v1", "--trust-first-use"]) == 0
        assert run(["rm", "seen.v1"]) == 0
        (found := next(store.snapshots())).joinpath("more").touch()
        assert run(["pull", "small"]) == 0  # the damaged snapshot is made anew
        store.make_folder(store.root / "trash")
    finally:
        os.umask(umask)
    assert not (found / "more").exists()
    assert len(list(store.root.rglob("*"))) > 10
    for path in store.root.rglob("*"):
        found_mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir():
            assert found_mode == mode, path
        else:
            assert found_mode & 0o444 == mode & 0o444, path


def test_of_another_user_what_is_intact_is_used(
    project: Path, published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sticky folder, nobody else may replace it, not even by the same."""
    register(project, "seen.v1", entry(LOCAL, None))
    assert run(["pull", "small", "seen.v1", "--trust-first-use"]) == 0
    for path in store.root.glob("refs/*"):
        path.unlink()
    rename = Path.rename

    def of_another(path: Path, target: Path) -> Path:
        if target.exists():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", of_another)
    assert run(["pull", "small", "seen.v1", "--trust-first-use"]) == 0
    assert run(["verify", "small", "seen.v1"]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_what_may_not_be_removed_is_told_and_not_counted(published: Path, store: Store) -> None:
    """The other files are removed all the same."""
    assert run(["pull", "small"]) == 0
    assert run(["rm", "small"]) == 0
    write_files(store.root, {"work/killed/file": b"four", "partial/killed/file": b"three"})
    before = stored_files(store)
    closed = [store.root / "snapshots", store.root / "partial", *store.root.glob("blobs/*")]
    for path in closed:
        path.chmod(0o555)
    try:
        done = process("gc", "--all", "--json", preexec_fn=without_privileges)
    finally:
        for path in closed:
            path.chmod(0o755)
    left = stored_files(store)
    assert before.keys() - left.keys() == {"work/killed/file"}
    assert json.loads(done.stdout) == {"files": 1, "bytes": 4}
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)
    more = len(list(store.snapshots())) + len(list(store.blobs()))
    assert f" and {more} more: Permission denied" in done.stderr
    assert run(["gc", "--all"]) == 0
    assert stored_files(store) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize(
    ("closed", "told"),
    [
        (".", {"store", "verify", "gc --all", "load small"}),
        ("refs", {"store", "verify", "gc --all", "load small"}),
        ("snapshots", {"verify", "gc --all", "load small"}),
        ("snapshots/*/model.safetensors", {"verify", "load small"}),
    ],
)
def test_what_may_not_be_read_is_told_and_not_taken_for_nothing(
    closed: str, told: set[str], published: Path, store: Store
) -> None:
    assert run(["pull", "small"]) == 0
    before = stored_files(store)
    (path,) = store.root.glob(closed) if closed != "." else [store.root]
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0)
    try:
        for command in ("store", "verify", "gc --all", "load small"):
            done = process(*command.split(), preexec_fn=without_privileges)
            assert (done.returncode, "Permission denied" in done.stderr) == (
                (2, True) if command in told else (0, False)
            ), command
            assert "Traceback" not in done.stderr
            assert "damaged" not in done.stdout + done.stderr
    finally:
        path.chmod(mode)
    assert stored_files(store) == before


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize("name", ["README.md", "model.safetensors"])
def test_what_may_not_be_read_is_not_pushed(name: str, project: Path, store: Store) -> None:
    """It is no fault of the store."""
    write_files(project / "model", bundle())
    (project / "model" / name).chmod(0)
    push = ("push", "model", "there", "--license", "MIT")
    done = process(*push, preexec_fn=without_privileges)
    assert done.returncode == 2
    assert done.stderr == f"model/{name}: error: cannot be read: Permission denied\n"
    assert not (project / "there").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_a_note_of_first_use_that_may_not_be_read_is_not_damaged(
    project: Path, published: Path, store: Store
) -> None:
    register(project, "small.v1", entry(LOCAL, None))
    assert run(["pull", "small", "--trust-first-use"]) == 0
    (note,) = store.root.glob("trusted/*/zoo.lock")
    note.chmod(0)
    done = process("load", "small", preexec_fn=without_privileges)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{note}: error: cannot be read: Permission denied\n")
    assert "forget" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize("command", ["list models", "load small", "show small", "pull small"])
def test_models_that_may_not_be_read_are_told(command: str, published: Path, store: Store) -> None:
    (catalog,) = {path.parent for path in Path().rglob("small*.toml")}
    catalog.chmod(0)
    try:
        done = process(*command.split(), preexec_fn=without_privileges)
    finally:
        catalog.chmod(0o755)
    assert done.returncode == 2
    assert done.stderr.endswith("the folder of models cannot be read: Permission denied\n")


REF = {
    "format": 1,
    "name": "small.v1",
    "version": "0123456789abcdef",
    "files": {},
    "published": {},
    "source": {"kind": "local"},
    "content_digest": None,
}


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"1", b'"x"', b"[]", b"{}", b"\xff", b"[" * 10_000, b'{"format": 1, "files": [1]}'),
        *(
            json.dumps({**REF, **other}).encode()
            for other in (
                {"source": 5},
                {"content_digest": []},
                {"name": "other.v1"},
                {"name": "../../victim/mine", "version": "1"},
                {"version": "fedcba9876543210"},
            )
        ),
    ],
)
@pytest.mark.parametrize("mend", ["pull", "rm"])
def test_a_ref_of_any_other_text_is_damaged_and_can_be_mended(
    mend: str,
    text: bytes,
    published: Path,
    store: Store,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a way out, a command would have to be followed by the removal of a file by hand."""
    victim = store.root.parent / "victim" / "mine@1.json"
    victim.parent.mkdir()
    victim.touch()
    assert run(["pull", "small"]) == 0
    (path,) = (store.root / "refs").iterdir()
    whole = path.read_bytes()
    path.write_bytes(text)
    assert run(["store"]) == 2
    told = capsys.readouterr().err
    assert f"{path}: error: is damaged: " in told
    assert f"`zoo pull small.v1` writes it again, `zoo rm {path.stem}` removes it" in told
    assert run([mend, "small"]) == 0
    assert (path.read_bytes() == whole) if mend == "pull" else not path.exists()
    assert path.stem in capsys.readouterr().out
    assert victim.exists()


def test_a_name_with_an_empty_version_is_refused(
    published: Path, store: Store, refused: Refused
) -> None:
    """As of `small@$VERSION` in a shell where the variable is not set."""
    assert run(["pull", "small"]) == 0
    for command in ("rm", "load", "show", "verify", "pull"):
        assert "there is no version after the `@` of `small@`" in refused(command, "small@")
    assert len(versions(store)) == 1


def test_a_ref_of_another_format_is_refused(
    published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small"]) == 0
    (path,) = (store.root / "refs").iterdir()
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    assert run(["store"]) == 2
    told = f"{path}: error: is damaged: a store of another version of the zoo"
    assert told in capsys.readouterr().err


def test_a_name_is_not_the_start_of_another(project: Path, published: Path, store: Store) -> None:
    register(project, "small.v10", entry(LOCAL, bundle()))
    assert run(["pull", "small.v1", "small.v10"]) == 0
    assert run(["rm", "small.v1"]) == 0
    (store.root / "refs" / "notes.json").write_text("of somebody else")
    assert [ref.name for ref in refs(store)] == ["small.v10"]


def test_the_order_of_its_files_does_not_name_a_snapshot(store: Store) -> None:
    files = {name: File(size=1, sha256=name * 64) for name in "abc"}
    assert store.snapshot(files) == store.snapshot(dict(reversed(files.items())))


def without_a_home(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user whom the system does not know, as in a container."""
    run_as = (
        "import pwd, sys\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "from zoo.__main__ import main; sys.argv[0] = 'zoo'; main()"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "ZOO_", "HOME"))}
    return subprocess.run(
        [sys.executable, "-c", run_as, *arguments],
        capture_output=True,
        text=True,
        env=kept | variables,
    )


def test_a_user_without_a_home_has_no_registry_of_their_own(tmp_path: Path) -> None:
    listed = without_a_home("list", "components", "glu")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "ffn" in listed.stdout
    store = without_a_home("store")
    assert store.returncode == 2
    assert store.stderr == (
        "error: this user has no home folder, so that there is no place for the store\n"
        "      = help: set ZOO_HOME to a folder\n"
    )
    assert without_a_home("store", ZOO_HOME=str(tmp_path)).returncode == 0


def test_a_link_into_the_store_is_not_written_through(
    published: Path, store: Store, tmp_path: Path
) -> None:
    assert run(["pull", "small"]) == 0
    (ref,) = refs(store)
    there = store.snapshot(ref.files) / "model.safetensors"
    before = there.read_bytes()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").symlink_to(there)
    with pytest.raises(zoo.ZooError, match="the link leads to a write-protected file"):
        zoo.save(zoo.build(SPEC, seed=5), tmp_path / "mine")
    assert there.read_bytes() == before


def test_the_store_of_a_user_that_does_not_exist(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_HOME", "~nobody-of-this-name/zoo")
    assert "there is no such user" in refused("store")


def test_a_store_that_is_a_file_is_told(published: Path, store: Store, refused: Refused) -> None:
    """As the default one, in a container whose HOME is /dev/null."""
    store.root.write_text("")
    for command in ("store", "verify", "gc", "pull small", "load small"):
        told = refused(*command.split())
        assert "Not a directory" in told
        assert "help: `ZOO_HOME` names another folder for the store" in told


def test_where_the_store_can_be_put_is_told(
    project: Path, store: Store, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example in a container without a writable home."""
    write_files(project / "model", bundle())
    register(project, "small.v1", entry(LOCAL, bundle()))
    monkeypatch.setenv("ZOO_HOME", "/proc/zoo")  # where no folder can be made
    told = refused("pull", "small.v1")
    assert "the store `/proc/zoo` cannot be written" in told
    assert "`ZOO_HOME` names another folder" in told


def versions(store: Store) -> list[str]:
    return sorted(path.stem.partition("@")[2] for path in (store.root / "refs").iterdir())


def test_a_version_stays_when_the_name_moves_on(
    project: Path, published: Path, store: Store
) -> None:
    old = zoo.load("small").state_dict()
    (version,) = versions(store)
    write_files(published, bundle(seed=1))
    register(project, "small.v1", entry(LOCAL, bundle(seed=1)))
    new = zoo.load("small").state_dict()
    again = zoo.load(f"small@{version[:6]}").state_dict()
    assert all(again[name].equal(old[name]) for name in old)
    assert any(not new[name].equal(old[name]) for name in old)


def test_a_stated_version_is_pulled_on_a_machine_that_has_none(
    project: Path, published: Path, store: Store, refused: Refused
) -> None:
    """As a script that names a version expects."""
    assert run(["pull", "small"]) == 0
    (version,) = versions(store)
    for bring in (["pull", f"small@{version}"], ["load", f"small@{version[:6]}"]):
        shutil.rmtree(store.root)
        told = refused("show", f"small@{version}")
        assert f"help: `zoo pull small@{version}` brings it there" in told
        assert run(bring) == 0
        assert versions(store) == [version]
    shutil.rmtree(store.root)
    register(project, "small.v1", entry(LOCAL, bundle(seed=1)))
    told = refused("pull", f"small@{version}")
    assert f"the registry does not state the version `{version}` of small.v1" in told
    model = find_pretrained("small", zoo.load_registry())
    assert model is not None
    assert f"help: it states `{model.version}`; `zoo pull small` brings the one that" in told
    with pytest.raises(StoreError, match=f"the store has no version `{version}` of `small`"):
        zoo.load(f"small@{version}")
    assert not store.root.exists()


def test_what_is_known_only_once_it_is_here_has_no_version_before(
    untold: Path, store: Store, refused: Refused
) -> None:
    for version in ("12", sha256(b"\n")[:6]):  # what would be that of no files
        told = refused("pull", f"small.v1@{version}", "--trust-first-use")
        assert f"the registry does not state the version `{version}` of small.v1" in told
        assert "help: it states no digests; `zoo pull small.v1` brings" in told
    assert run(["pull", "small.v1", "--trust-first-use"]) == 0
    (version,) = versions(store)
    assert run(["rm", "small.v1"]) == 0
    assert run(["pull", f"small.v1@{version}"]) == 0


def test_an_unknown_version_tells_those_there_are(published: Path, store: Store) -> None:
    run(["pull", "small"])
    with pytest.raises(
        zoo.ZooError, match=f"no version `ffff`.*\n.*help: in the store: `{versions(store)[0]}`"
    ):
        zoo.load("small@ffff")
    with pytest.raises(zoo.ZooError, match="no version"):  # a version is meant by its start
        zoo.load(f"small@{versions(store)[0][1:]}")
    assert run(["rm", "small"]) == 0
    with pytest.raises(zoo.ZooError, match="help: `zoo pull small` brings the one that"):
        zoo.load("small@ffff")


def test_the_start_of_several_versions_is_none_of_them(published: Path, store: Store) -> None:
    assert run(["pull", "small"]) == 0
    (ref,) = refs(store)
    write_ref(store, replace(ref, version=f"{ref.version[:-1]}x"))
    assert zoo.load(f"small@{ref.version}").spec.name == "small"
    with pytest.raises(zoo.ZooError, match=f"several versions `{ref.version[:8]}`"):
        zoo.load(f"small@{ref.version[:8]}")
    for command in ("rm", "verify"):
        assert run([command, f"small@{ref.version[:8]}"]) == 2
    assert len(versions(store)) == 2


def test_removing_and_collecting_leaves_nothing(
    published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small"]) == 0
    assert stored_files(store)
    assert run(["gc", "--all"]) == 0
    assert run(["verify", "small"]) == 0
    assert run(["rm", "small"]) == 0
    assert run(["gc", "--all"]) == 0
    assert stored_files(store) == {}
    size = size_of_bundle()  # each byte once, for all of its links
    assert capsys.readouterr().out.endswith(f" files removed, {size} freed\n")


def test_what_a_ref_names_is_not_moved(
    published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a moment: who opens the model then would not find it."""
    assert run(["pull", "small"]) == 0
    moved: list[Path] = []
    monkeypatch.setattr(Path, "rename", lambda path, target: moved.append(path))
    assert run(["gc", "--all"]) == 0
    assert moved == []


def test_what_was_pulled_again_since_a_collector_was_killed_is_removed(
    published: Path, store: Store
) -> None:
    assert run(["pull", "small"]) == 0
    assert run(["rm", "small"]) == 0
    (snapshot,) = store.snapshots()
    shutil.copytree(snapshot, store.root / "trash" / snapshot.name)
    assert run(["gc", "--all"]) == 0
    assert stored_files(store) == {}


@pytest.mark.parametrize("what", ["rename", "unlink", "rmdir"])
def test_another_collector_may_be_quicker(
    what: str, published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["pull", "small"]) == 0
    assert run(["rm", "small"]) == 0
    once = getattr(Path, what)

    def after_another(*arguments: Path) -> Path | None:
        once(*arguments)
        return once(*arguments)  # of what is gone

    monkeypatch.setattr(Path, what, after_another)
    assert run(["gc", "--all"]) == 0
    assert stored_files(store) == {}


def test_what_a_killed_collector_left_of_a_model_that_is_there_is_removed(
    published: Path, store: Store
) -> None:
    assert run(["pull", "small"]) == 0
    (snapshot,) = store.snapshots()
    shutil.copytree(snapshot, store.root / "trash" / snapshot.name)
    assert run(["gc"]) == 0
    assert not any((store.root / "trash").iterdir())
    assert run(["verify", "small"]) == 0


def test_a_snapshot_of_which_files_are_gone_is_not_restored(
    published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["pull", "small"]) == 0
    (ref,) = refs(store)
    assert run(["rm", "small"]) == 0
    unlink = Path.unlink
    is_there: list[bool] = []

    def looked_for(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        is_there.append(restored(store, ref).exists())

    monkeypatch.setattr(Path, "unlink", looked_for)
    assert run(["gc", "--all"]) == 0
    assert {*is_there} == {False}


def test_a_file_that_has_its_name_meanwhile_is_not_removed(tmp_path: Path) -> None:
    assert list(_abandoned([tmp_path / ".zoo-1.tmp"], NO_GRACE)) == []


def test_what_is_there_is_removed_whatever_else_is_named(
    project: Path, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    register(project, "other.v1", entry(LOCAL, bundle()))
    assert run(["pull", "small", "other.v1"]) == 0
    assert run(["rm", "absent", "small", "other.v1@ffff", "other.v1"]) == 2
    told = capsys.readouterr().err
    assert "`absent` is not in the store" in told
    assert "`other.v1@ffff` is not in the store" in told
    assert list(refs(store)) == []


def test_what_somebody_may_still_be_at_is_left_alone(
    project: Path, published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new snapshot may belong to a pull that has not written its ref yet, and new files may be
    incomplete; they are removed after a minute and an hour."""
    assert run(["pull", "small"]) == 0
    assert run(["rm", "small"]) == 0
    (snapshot,) = store.snapshots()
    outside = project / "outside"
    names = ["partial/1.2", "work/1/file", "refs/.zoo-1.tmp", "blobs/ab/.zoo-1.tmp"]
    written = [store.root / name for name in (*names, "trusted/small.v1/.zoo-1.tmp")]
    written.append(outside / ".zoo-1.tmp" / "file")
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for folder in (snapshot, *(path.parent for path in written)):
        os.utime(folder, (0, 0))  # the time of the latest change inside, or of the move, counts
    since = time.time()
    for seconds, left in ((0, {snapshot, *written}), (61, set(written)), (3601, set[Path]())):
        monkeypatch.setattr("zoo.store.collecting.time.time", lambda s=seconds: since + s)
        assert run(["gc", str(outside)]) == 0
        assert {path for path in (snapshot, *written) if path.exists()} == left
    assert not list(outside.iterdir())


def test_files_of_a_clock_that_is_ahead_can_be_removed(
    project: Path, published: Path, store: Store
) -> None:
    """Such as those that another machine has written to a network disk."""
    assert run(["pull", "small"]) == 0
    assert run(["rm", "small"]) == 0
    (snapshot,) = store.snapshots()
    write_files(store.root / "work", {"killed/file": b""})
    write_files(project / "outside", {".zoo-1.tmp": b""})
    ahead = time.time() + 3600
    for path in (snapshot, *store.root.rglob("work/*"), *project.rglob(".zoo-*")):
        os.utime(path, (ahead, ahead))
    assert run(["gc", "outside"]) == 0
    assert snapshot.exists()
    assert len(list((project / "outside").iterdir())) == 1
    assert run(["gc", "--all", "outside"]) == 0
    assert not any(path.is_file() for path in store.root.rglob("*"))
    assert not any((project / "outside").iterdir())


def test_a_pull_that_takes_hours_is_left_alone(
    published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written to its folder while a large file is received."""
    read = Local.read

    def read_slowly(source: Local, path: str, start: int, access: Access) -> Any:
        for folder in (access.scratch, access.scratch.parent):
            os.utime(folder, (0, 0))
        end = time.monotonic() + 300
        while access.scratch.parent.stat().st_mtime == 0 and time.monotonic() < end:
            time.sleep(0.01)
        assert run(["gc"]) == 0
        return read(source, path, start, access)

    n_threads = threading.active_count()
    monkeypatch.setattr("zoo.store.files._TOUCHED", 0.01)
    monkeypatch.setattr(Local, "read", read_slowly)
    assert run(["pull", "small"]) == 0
    assert threading.active_count() <= n_threads  # none is left that touches


def test_a_snapshot_that_is_pulled_again_is_as_a_new_one(published: Path, store: Store) -> None:
    """A collector keeps new snapshots, which may not have a ref yet."""
    assert run(["pull", "small"]) == 0
    assert run(["rm", "small"]) == 0
    (snapshot,) = store.snapshots()
    os.utime(snapshot, (0, 0))
    assert run(["pull", "small"]) == 0
    assert snapshot.stat().st_mtime > time.time() - 3600


def test_what_is_collected_before_it_has_a_ref_is_published_again(
    published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector on another machine has seen a snapshot without a ref."""

    def after_a_collector(store: Store, ref: Ref) -> None:
        shutil.rmtree(store.snapshot(ref.files))
        write_ref(store, ref)

    monkeypatch.setattr("zoo.store.pulling.write_ref", after_a_collector)
    assert run(["pull", "small"]) == 0
    assert run(["verify", "small"]) == 0


def test_what_another_model_uses_is_kept(
    project: Path, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    register(
        project, "small.v2", entry(LOCAL, bundle(), 'content_digest = "sha256:' + "0" * 64 + '"')
    )
    register(project, "small.v3", entry(LOCAL, {"model.safetensors": weights()}))
    assert run(["pull", "small.v1", "small.v3"]) == 0
    assert run(["rm", "small.v1"]) == 0
    capsys.readouterr()
    assert run(["gc", "--all", "--json"]) == 0
    freed = json.loads(capsys.readouterr().out)["bytes"]
    assert freed == sum(map(len, bundle().values())) - len(weights())
    assert run(["verify", "small.v3"]) == 0
    assert {path.name for path in store.blobs()} == {sha256(weights())}


@pytest.mark.parametrize("harm", ["change", "shorten", "remove", "add"])
def test_damage_in_the_store_is_found_and_mended(
    harm: str, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small"]) == 0
    (file,) = store.root.rglob("model.safetensors")
    content = bytearray(file.read_bytes())
    file.chmod(0o644)
    if harm == "change":
        content[-1] ^= 1
        file.write_bytes(content)
    elif harm == "shorten":
        file.write_bytes(content[:-1])
    elif harm == "remove":
        file.unlink()
    else:
        (file.parent / "sitecustomize.py").touch()
    assert run(["verify"]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert run(["pull", "small"]) == 0
    assert run(["verify"]) == 0
    assert {path.name for path in store.root.rglob("model.safetensors")} == {"model.safetensors"}
    assert all(sha256(path.read_bytes()) == path.name for path in store.blobs())


def test_how_far_verifying_is_is_shown_on_a_terminal(published: Path, store: Store) -> None:
    assert run(["pull", "small"]) == 0
    out, on_screen = on_terminal("verify", "small")
    assert b"small.v1" in on_screen
    assert re.search(rb"m(\d+\.\d)/\1 kB", on_screen)  # complete
    assert out.startswith("small.v1@")
    assert out.count("\n") == 1


def test_the_progress_of_verifying_counts_every_byte(published: Path, store: Store) -> None:
    assert run(["pull", "small"]) == 0
    (ref,) = refs(store)
    sizes: list[int] = []
    assert verify(ref, store, zoo.load_registry(), on_bytes=sizes.append).is_right
    assert sum(sizes) == ref.n_bytes


# --- loading from the store -----------------------------------------------------------------------


def written_to(store: Store, content: bytes) -> None:
    """Overwrite the stored weights with other bytes."""
    (file,) = store.root.rglob("model.safetensors")
    file.chmod(0o644)
    file.write_bytes(content)
    file.chmod(0o444)


def resealed() -> bytes:
    """Return the weights with one byte of a tensor changed, and a matching header."""
    data, entries, content = parts(weights())
    name = next(iter(entries))
    start, end = entries[name]["data_offsets"]
    changed = bytearray(content)
    changed[start] ^= 1
    data["tensors"][name]["sha256"] = sha256(bytes(changed[start:end]))
    return joined(data, entries, bytes(changed))


def test_every_byte_in_the_store_counts(published: Path, store: Store) -> None:
    assert run(["pull", "small"]) == 0
    for at in range(0, len(weights()), 97):
        content = bytearray(weights())
        content[at] ^= 1
        written_to(store, bytes(content))
        with pytest.raises(zoo.WeightsError, match=r"model\.safetensors: error: "):
            zoo.load("small")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"whole"}),
        ({"read": "bytes"}, {"tensors"}),
        ({"only": "*.norm.*"}, {"tensors"}),
        ({"verify": False}, set()),
    ],
)
def test_each_byte_that_is_read_is_hashed_once(
    options: dict[str, Any],
    expected: set[str],
    published: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files are hashed as a whole where they are mapped as a whole. What is copied is hashed as it
    is copied: the file may be another by the time that it would be mapped."""
    assert run(["pull", "small"]) == 0
    found: set[str] = set()
    blake3, sha256_of = OpenFile.blake3, hashlib.sha256

    def of_files(file: OpenFile, piece: slice) -> str:
        found.add("whole")
        return blake3(file, piece)

    def of_tensors() -> Any:
        found.add("tensors")
        return sha256_of()

    monkeypatch.setattr(OpenFile, "blake3", of_files)
    monkeypatch.setattr("zoo.weights.reader.hashlib", SimpleNamespace(sha256=of_tensors))
    zoo.load("small", **options)
    assert found == expected


def test_the_tensor_that_has_changed_is_named(published: Path, store: Store) -> None:
    assert run(["pull", "small"]) == 0
    _, entries, _ = parts(weights())
    last = max(entries, key=lambda name: entries[name]["data_offsets"])
    written_to(store, weights()[:-1] + bytes([weights()[-1] ^ 1]))
    with pytest.raises(zoo.WeightsError, match=f"the bytes of `{last}` are not those"):
        zoo.load("small")
    assert zoo.load("small", verify=False).spec.name == "small"


def test_a_header_that_agrees_with_what_was_changed_helps_nobody(
    published: Path, store: Store
) -> None:
    """The file is consistent, but not the one that was pulled."""
    assert run(["pull", "small"]) == 0
    written_to(store, resealed())
    (file,) = store.root.rglob("model.safetensors")
    assert zoo.load(file).spec.name == "small"
    with pytest.raises(zoo.WeightsError, match="not the file that was pulled"):
        zoo.load("small")


def test_what_lies_about_its_tensors_never_comes_into_the_store(
    project: Path, published: Path, store: Store, refused: Refused
) -> None:
    data, entries, content = parts(weights())
    name = next(iter(entries))
    data["tensors"][name]["sha256"] = "0" * 64
    lying = {"model.safetensors": joined(data, entries, content)}
    write_files(published, lying)
    register(project, "small.v1", entry(LOCAL, lying))
    assert f"the bytes of `{name}` are not those" in refused("pull", "small")
    register(project, "small.v1", entry(LOCAL, None))
    assert f"the bytes of `{name}` are not" in refused("pull", "small", "--trust-first-use")
    assert run(["gc", "--all"]) == 0
    assert stored_files(store) == {}


def test_what_is_written_to_while_it_is_checked_never_comes_into_the_store(
    published: Path, store: Store, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digests that loading goes by are those of the bytes whose tensors were checked."""
    blake3 = Weights.blake3

    def then_written(weights: Weights) -> dict[str, list[str]]:
        found = blake3(weights)
        os.utime(weights.path, (0, 0))
        return found

    monkeypatch.setattr(Weights, "blake3", then_written)
    assert "it was written to while it was read" in refused("pull", "small")
    assert list(store.snapshots()) == []


def test_a_ref_of_earlier_days_is_checked_by_sha256(published: Path, store: Store) -> None:
    assert run(["pull", "small"]) == 0
    (file,) = (store.root / "refs").iterdir()
    ref = json.loads(file.read_text())
    assert ref.pop("blake3")
    file.write_text(json.dumps(ref))
    assert zoo.load("small").spec.name == "small"
    written_to(store, weights()[:-1] + bytes([weights()[-1] ^ 1]))
    with pytest.raises(zoo.WeightsError, match="are not those"):
        zoo.load("small")


@pytest.mark.parametrize("noted", [{}, {"model.safetensors": ["0" * 64]}])
def test_a_pull_notes_the_digests_that_loading_goes_by(
    noted: dict[str, list[str]], published: Path, store: Store
) -> None:
    assert run(["pull", "small"]) == 0
    (file,) = (store.root / "refs").iterdir()
    right = file.read_text()
    file.write_text(json.dumps(json.loads(right) | {"blake3": noted}))
    if noted:
        with pytest.raises(zoo.WeightsError, match="`zoo pull` mends a named model"):
            zoo.load("small")
    assert run(["pull", "small"]) == 0
    assert file.read_text() == right
    assert zoo.load("small").spec.name == "small"


FORK = """
import os, signal, torch, zoo
zoo.load("large.v1")
child = os.fork()
if child == 0:
    torch.set_num_threads(1)  # torch's own threads do not come along either
    signal.alarm(300)
    zoo.load("large.v1")
    os._exit(0)
raise SystemExit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_loads_too(project: Path, store: Store) -> None:
    """The threads that hash do not exist after a fork, as when a server loads and then forks."""
    zoo.save(zoo.build(SPEC.replace("vocab = 11", "vocab = 200_000")), project / "published")
    files = {"model.safetensors": (project / "published" / "model.safetensors").read_bytes()}
    register(project, "large.v1", entry(LOCAL, files))
    python(FORK)


@pytest.mark.parametrize("content", [weights()[:-1], weights()[:-1] + b"?", b"{}", resealed()])
def test_what_finds_damage_tells_what_mends_it(
    content: bytes, published: Path, store: Store, refused: Refused
) -> None:
    assert run(["pull", "small"]) == 0
    written_to(store, content)
    assert "`zoo pull` mends a named model" in refused("load", "small")


def test_a_model_that_is_half_gone_is_not_there(
    published: Path, store: Store, refused: Refused
) -> None:
    assert run(["pull", "small"]) == 0
    (file,) = store.root.rglob("model.safetensors")
    file.unlink()
    told = "error: `small` is not in the store\n      = help: `zoo pull small` brings it there\n"
    assert refused("show", "small") == told
    assert zoo.load("small").spec.name == "small"
    assert file.is_file()


@pytest.mark.parametrize("model", ['"small.v1"', '"spec.toml"\nweights = "small.v1"'])
def test_what_a_recipe_names_is_pulled(model: str, project: Path, store: Store) -> None:
    word_tokenizer(["?", "a", "dog"], "?").save(str(project / "tokenizer.json"))
    files = bundle() | {"tokenizer.json": (project / "tokenizer.json").read_bytes()}
    write_files(project / "published", files)
    register(project, "small.v1", entry(LOCAL, files))
    (project / "spec.toml").write_text(SPEC)
    (project / "lines.txt").write_text("a dog\ndog a\na a\n")
    recipe = f"""format = 1
name = "tuned"
model = {model}
data = {{ kind = "text", train = "lines.txt", valid = 1 }}
tokenizer = {{ kind = "of_model", bos = "a", eos = "a", pad = "?" }}
optimizer = {{ kind = "adamw", lr = 1e-4 }}
schedule = {{ kind = "constant" }}
training = {{ steps = 1, batch_tokens = 10, max_length = 5 }}
"""
    (project / "recipe.toml").write_text(recipe)
    assert run(["validate", "recipe.toml"]) == 0
    assert [ref.name for ref in refs(store)] == ["small.v1"]


def test_a_damaged_version_that_no_pull_mends_is_told_apart(
    project: Path, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small"]) == 0
    (old,) = versions(store)
    (path,) = store.root.glob("snapshots/*/model.safetensors")
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    capsys.readouterr()
    assert run(["verify", "small"]) == 2
    told = f"small.v1@{old} is damaged\n      = help: "
    assert f"{told}`zoo pull small.v1` mends it" in capsys.readouterr().err
    write_files(published, bundle(seed=1))
    register(project, "small.v1", entry(LOCAL, bundle(seed=1)))
    assert run(["pull", "small"]) == 0
    capsys.readouterr()
    assert run(["verify", "small"]) == 2
    way_out = f"rm small.v1@{old}"
    known = "no registry states this version of small.v1"
    assert f"{told}{known}: `zoo {way_out}` removes it" in capsys.readouterr().err
    (project / "models" / "small.v1.toml").unlink()
    assert run(["verify", f"small.v1@{old}"]) == 2
    assert f"{told}{known}: `zoo {way_out}` removes it" in capsys.readouterr().err
    assert run(way_out.split()) == 0
    assert run(["verify", "small"]) == 0


def test_what_cannot_be_built_does_not_wait_for_its_digests(
    published: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["pull", "small"]) == 0
    (path,) = store.root.glob("snapshots/*/model.safetensors")
    hashed: list[slice] = []
    given_up = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            given_up.set()
            super().shutdown(wait=wait)

    def slowly(file: OpenFile, piece: slice) -> str:
        given_up.wait(1)  # not for ever, or what waits for all digests would wait for ever
        hashed.append(piece)
        return ""

    def refuse(*_: object) -> None:
        raise zoo.PluginError("cannot be built")

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr("zoo.weights.reader.PIECE", 100)
    monkeypatch.setattr("zoo.weights.reader.ThreadPoolExecutor", Pool)
    monkeypatch.setattr(OpenFile, "blake3", slowly)
    monkeypatch.setattr("zoo.loading.build_on_meta", refuse)
    with pytest.raises(zoo.PluginError, match="cannot be built"):
        zoo.load("small")
    assert len(hashed) < path.stat().st_size // 100


def test_the_content_digest_is_checked(project: Path, published: Path, refused: Refused) -> None:
    digest = "sha256:" + "0" * 64
    register(project, "small.v1", entry(LOCAL, bundle(), f'content_digest = "{digest}"'))
    told = refused("pull", "small")
    assert "have the digest" in told
    assert "help: the source has been changed, or this line is about other weights\n" in told


def test_the_content_digest_is_checked_of_what_was_pulled_before_too(
    project: Path, published: Path, refused: Refused
) -> None:
    assert run(["pull", "small"]) == 0
    digest = "sha256:" + "0" * 64
    register(project, "small.v1", entry(LOCAL, bundle(), f'content_digest = "{digest}"'))
    assert run(["verify", "small"]) == 2
    told = refused("pull", "small")
    assert "small.v1.toml:2:18: error: the weights of small.v1 have the digest" in told
    with pytest.raises(zoo.ZooError, match="have the digest"):
        zoo.load("small")


def put_instead(store: Store, folder: Path) -> None:
    """Put the files in a folder into the store in the place of a model's, with their digests."""
    (ref,) = refs(store)
    files = digests(folder)
    with store.work() as work, open_weights(folder) as weights:
        store.add(folder, files, work)
        digest, blake3 = weights.header.content_digest, weights.blake3()
        other = replace(ref, files=files, published=files, content_digest=digest, blake3=blake3)
        write_ref(store, other)


@pytest.mark.parametrize("name", ["model.safetensors", "README.md", "chat_template.jinja"])
def test_what_the_store_says_of_a_model_is_held_against_the_registry(
    name: str, published: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody has put another file there, and its digests."""
    assert run(["pull", "small"]) == 0
    (right,) = refs(store)
    another = weights(seed=1) if name == "model.safetensors" else b"another"
    write_files(tmp_path / "other", bundle() | {name: another})
    put_instead(store, tmp_path / "other")
    capsys.readouterr()
    assert run(["verify", "small"]) == 2
    assert capsys.readouterr().out == f"small.v1@{right.version}: damaged: {name}\n"
    assert run(["pull", "small"]) == 0
    assert list(refs(store)) == [right]
    assert run(["verify", "small"]) == 0
    put_instead(store, tmp_path / "other")
    state, original = zoo.load("small").state_dict(), zoo.load(published).state_dict()
    assert all(state[name].equal(original[name]) for name in original)
    assert list(refs(store)) == [right]


def test_verify_tells_that_the_registry_states_another_version(
    project: Path, published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small"]) == 0
    (old,) = refs(store)
    write_files(published, bundle(seed=1))
    register(project, "small.v1", entry(LOCAL, bundle(seed=1)))
    capsys.readouterr()
    assert run(["verify", "small"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"small.v1@{old.version}: 2 files, ")
    _, _, stated = told.partition(
        ": intact by the digests in the store; the registry states small.v1@"
    )
    assert run(["pull", "small"]) == 0
    assert capsys.readouterr().out.startswith(f"small.v1@{stated}")
    register(project, "small.v1", entry(LOCAL, None))
    for _ in range(2):
        assert run(["verify", f"small@{old.version}"]) == 0
        assert "; no registry states digests of small.v1\n" in capsys.readouterr().out
        (project / "models" / "small.v1.toml").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (weights(1), "has the SHA-256"),
        (weights()[:-1], "ends after"),
        (weights() + b"0", "is longer than"),
        (None, "there is no file"),
    ],
)
def test_other_bytes_are_refused(
    content: bytes | None, told: str, published: Path, store: Store, refused: Refused
) -> None:
    if content is None:
        (published / "model.safetensors").unlink()
    else:
        (published / "model.safetensors").write_bytes(content)
    assert told in refused("pull", "small")
    assert run(["gc", "--all"]) == 0
    assert stored_files(store) == {}


def test_foreign_weights_are_refused(project: Path, published: Path, refused: Refused) -> None:
    header = json.dumps({}).encode()
    foreign = {"model.safetensors": len(header).to_bytes(8, "little") + header}
    write_files(published, foreign)
    register(project, "small.v1", entry(LOCAL, foreign))
    assert "not the zoo's" in refused("pull", "small")


# --- trust on first use -------------------------------------------------------------------------


@pytest.fixture
def untold(project: Path, published: Path) -> Path:
    """Register the same model without digests."""
    register(project, "small.v1", entry(LOCAL, None))
    return published


def test_unknown_digests_are_not_trusted_by_themselves(untold: Path, refused: Refused) -> None:
    assert "zoo pull small.v1 --trust-first-use" in refused("pull", "small")
    with pytest.raises(zoo.ZooError, match="are not known here"):
        zoo.load("small")


def test_what_was_seen_first_is_what_counts(untold: Path, store: Store, refused: Refused) -> None:
    assert run(["pull", "small", "--trust-first-use"]) == 0
    lock = store.root / "trusted" / "small.v1" / "zoo.lock"
    seen = lock.read_bytes()
    assert sha256(weights()) in seen.decode()
    assert [*lock.parent.iterdir()] == [lock]
    write_files(untold, bundle(seed=1))
    assert zoo.load("small").spec.name == "small"
    assert run(["rm", "small"]) == 0
    assert run(["gc"]) == 0
    for arguments in (["pull", "small"], ["pull", "small", "--trust-first-use"]):
        assert "has the SHA-256" in refused(*arguments)
    assert lock.read_bytes() == seen


def test_what_was_seen_is_on_disk_before_it_has_its_name(
    untold: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a crash could leave half of it, and the model would be refused from then on."""
    synced: set[int] = set()
    sync, rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def name(source: Path, target: Path) -> None:
        if target.parent.name == "trusted":
            assert {path.stat().st_ino for path in (source, source / "zoo.lock")} <= synced
            renamed.append(target)
        rename(source, target)

    renamed: list[Path] = []
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", name)
    assert run(["pull", "small", "--trust-first-use"]) == 0
    assert renamed == [store.root / "trusted" / "small.v1"]
    assert (store.root / "trusted").stat().st_ino in synced


def test_without_hard_links_what_was_seen_is_whole_or_not_there(
    untold: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the lock is copied to its place, if it is copied."""

    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    registry = zoo.load_registry()
    model = find_pretrained("small.v1", registry)
    assert model is not None
    seen = model.with_files(model.source, {"model.safetensors": File(size=9, sha256="1" * 64)})
    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(shutil, "copyfileobj", no_space)
    record(seen, store, registry)
    assert with_trusted(model, store, registry).manifest.files == seen.manifest.files
    (lock,) = (path for path in store.root.rglob("*") if path.is_file())
    assert lock == store.root / "trusted" / "small.v1" / "zoo.lock"


def test_what_was_seen_may_be_forgotten_and_seen_again(untold: Path, store: Store) -> None:
    registry = zoo.load_registry()
    model = find_pretrained("small.v1", registry)
    assert model is not None
    for digit in "12":
        files = {"model.safetensors": File(size=9, sha256=digit * 64)}
        record(model.with_files(model.source, files), store, registry)
        assert with_trusted(model, store, registry).manifest.files == files
        assert forget(store, "small.v1")
        assert not (store.root / "trusted/small.v1").exists()  # another user may see it first
    write_files(store.root / "trusted/small.v1", {"zoo.lock": b"", ".zoo-1.tmp": b""})
    assert forget(store, "small.v1")
    assert [path.name for path in (store.root / "trusted/small.v1").iterdir()] == [".zoo-1.tmp"]


def test_a_note_of_first_use_that_cannot_be_written(untold: Path, store: Store) -> None:
    registry = zoo.load_registry()
    model = find_pretrained("small.v1", registry)
    assert model is not None
    (store.root / "trusted/small.v1/other").mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be written: Directory not empty"):
        record(model, store, registry)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = [", "zoo.lock:1:6: error: not TOML: invalid value\n"),
        ("x = 1", "zoo.lock:1:1: error: `[source]` says where from by its `kind`\n"),
        ("", "zoo.lock:1:1: error: the file is empty\n"),
        ('[source]\nkind = "local"\npath = "../published"\n', "error: this lock is damaged\n"),
    ],
)
def test_a_damaged_note_of_first_use_has_a_way_out(
    text: str, told: str, untold: Path, store: Store, refused: Refused
) -> None:
    assert run(["pull", "small.v1", "--trust-first-use"]) == 0
    (note,) = store.root.glob("trusted/*/zoo.lock")
    note.write_text(text)
    shown = refused("load", "small.v1")
    assert told in shown
    assert "help: `zoo rm small.v1 --forget` removes it" in shown
    assert run(["rm", "small.v1", "--forget"]) == 0
    assert not note.exists()


def test_of_two_who_see_other_things_first_one_is_told(untold: Path, store: Store) -> None:
    """Both pull at once, before a lock is written; the first lock stays."""
    registry = zoo.load_registry()
    model = find_pretrained("small.v1", registry)
    assert model is not None
    first, second = (
        model.with_files(model.source, {"model.safetensors": File(size=9, sha256=digit * 64)})
        for digit in "12"
    )
    record(first, store, registry)
    record(first, store, registry)
    with pytest.raises(zoo.ZooError, match="is not what it was on first use"):
        record(second, store, registry)
    assert with_trusted(model, store, registry).manifest.files == first.manifest.files


def test_what_the_registry_states_goes_before_what_was_seen_first(
    project: Path, untold: Path, store: Store
) -> None:
    assert run(["pull", "small.v1", "--trust-first-use"]) == 0
    write_files(untold, bundle(seed=1))
    register(project, "small.v1", entry(LOCAL, bundle(seed=1)))
    assert run(["pull", "small.v1"]) == 0
    found = {ref.files["model.safetensors"].sha256 for ref in refs(store)}
    assert found == {sha256(weights()), sha256(weights(1))}


def test_forgetting_is_explicit(untold: Path, store: Store) -> None:
    assert run(["pull", "small", "--trust-first-use"]) == 0
    write_files(untold, bundle(seed=1))
    assert run(["rm", "small", "--forget"]) == 0
    assert run(["pull", "small"]) == 2
    assert run(["pull", "small", "--trust-first-use"]) == 0
    lock = store.root / "trusted" / "small.v1" / "zoo.lock"
    assert sha256(weights(1)) in lock.read_text()
    (ref,) = refs(store)
    assert run(["rm", f"small@{ref.version}", "--forget"]) == 0
    assert not lock.exists()


def test_only_the_store_is_forgotten(project: Path, store: Store, refused: Refused) -> None:
    """A bundle has a `zoo.lock` too."""
    for folder in (project / "bundle", store.root / "bundle"):
        write_files(folder, {"zoo.lock": b"mine"})
        for path in (str(folder), os.path.relpath(folder, store.root / "trusted")):
            assert "is not in the store" in refused("rm", path, "--forget")
        assert (folder / "zoo.lock").read_bytes() == b"mine"


def test_what_is_removed_is_told(
    untold: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small", "--trust-first-use"]) == 0
    capsys.readouterr()
    assert run(["rm", "small"]) == 0
    size = size_of_bundle()
    told = capsys.readouterr().out
    assert re.fullmatch(rf"removed small\.v1@\w+; `zoo gc` frees up to {re.escape(size)}\n", told)
    assert run(["rm", "small", "--forget"]) == 0  # only its lock is left
    assert capsys.readouterr().out == "forgot what small.v1 was on first use\n"
    assert run(["rm", "small", "--forget"]) == 2
    assert capsys.readouterr().err.startswith("error: `small` is not in the store\n")
    assert run(["verify"]) == 0
    assert capsys.readouterr().out == "there are no models in the store\n"


def test_what_is_removed_and_freed_as_json(
    untold: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small", "--trust-first-use"]) == 0
    (ref,) = refs(store)
    capsys.readouterr()
    assert run(["rm", "absent", "small", "--forget", "--json"]) == 2
    n_bytes = sum(map(len, bundle().values()))
    assert json.loads(capsys.readouterr().out) == {
        "removed": [{"name": "small.v1", "version": ref.version, "bytes": n_bytes}],
        "forgotten": ["small.v1"],
    }
    n_files = len(stored_files(store))
    assert run(["gc", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": n_files, "bytes": n_bytes}


def test_only_files_of_models_are_taken(untold: Path, store: Store) -> None:
    others = {
        "pytorch_model.bin": b"pickle",
        "run.py": b"1",
        ".git/config": b"",
        "onnx/a.json": b"",
    }
    write_files(untold, others)
    assert run(["pull", "small", "--trust-first-use"]) == 0
    (snapshot,) = (store.root / "snapshots").iterdir()
    assert {path.name for path in snapshot.rglob("*")} == set(bundle())


# --- mistakes in a model's file -----------------------------------------------------------------


MISTAKES = [
    ("format = 1", "format = 2", "1:10", "`format` must be `1`, not the integer `2`"),
    ("format = 1", "format = true", "1:10", "`format` must be `1`, not the boolean `true`"),
    ("format = 1", "format = 1.0", "1:10", "`format` must be `1`, not the float `1.0`"),
    ('kind = "local"', 'kind = "locl"', "4:8", "unknown source `locl`"),
    ('path = "../published"', "", "3:2", "the key `path` is missing"),
    ('path = "../published"', 'path = ""\nurl = "x"', "6:1", "unknown key `url`"),
    ("license =", "licence =", "2:1", "unknown key `licence`"),
    ("weights =", "wheights =", "2:13", "unknown key `wheights`"),
    ("size = ", 'size = "1" #', "7:8", "`size` must be an integer, not the string `1`"),
    ("size = ", "sise = ", "7:1", "unknown key `sise`"),
    ('sha256 = "', 'sha256 = "A', "8:10", "`sha256` must be"),
    *(
        ('[files."README.md"]', f"[files.{key}]", "9:8", f"`{path}` is not a valid path for a")
        for key, path in {
            '"../README.md"': "../README.md",
            '"/README.md"': "/README.md",
            '".git/config"': ".git/config",
            '"a\\\\b"': "a\\b",
        }.items()
    ),
    *(
        (
            "[source]",
            f"[fingerprint]\nids = [[1]]\nat = {at}\nvalues = []\ntolerance = 1e-4\n[source]",
            "3:2",
            "a fingerprint has one value for each index in `at`",
        )
        for at in ("[[1]]", "[]")
    ),
]


@pytest.mark.parametrize(("old", "new", "place", "told"), MISTAKES)
def test_mistakes_have_places(
    old: str, new: str, place: str, told: str, project: Path, published: Path, refused: Refused
) -> None:
    text = entry(LOCAL, bundle())
    assert old in text
    register(project, "small.v1", text.replace(old, new))
    assert f"small.v1.toml:{place}: error: {told}" in refused("pull", "small")


@pytest.mark.parametrize(
    ("old", "new", "near"),
    [
        ("license =", "licence =", "license"),
        ("[source]", "[sourc]", "source"),
        ("path =", "pat =", "path"),
        ('"local"', '"locl"', "local"),
        ("weights =", "wheights =", "weights"),
        ("size =", "sise =", "size"),
    ],
)
def test_the_nearest_key_is_one_of_the_same_table(
    old: str, new: str, near: str, project: Path, published: Path, refused: Refused
) -> None:
    register(project, "small.v1", entry(LOCAL, bundle()).replace(old, new))
    assert f"help: did you mean `{near}`?" in refused("pull", "small")


def test_a_version_is_also_of_the_family_that_reads_it(project: Path) -> None:
    found: set[str] = set()
    for family in ((), ('family = "bert"',), ('family = "gpt2"',)):
        register(project, "small.v1", entry(LOCAL, bundle(), *family))
        model = find_pretrained("small.v1", zoo.load_registry())
        assert model is not None
        found.add(model.version)
    assert len(found) == 3


def test_a_model_without_digests_says_so(project: Path, published: Path, refused: Refused) -> None:
    text = entry(LOCAL, None).replace('trust = "first_use"\n', "")
    register(project, "small.v1", text)
    assert "a model states its `files`, or says" in refused("pull", "small")


def test_the_nearest_name_is_told(published: Path, refused: Refused) -> None:
    assert "did you mean `small`?" in refused("pull", "smal")
    assert "help: `zoo list models` lists" in refused("pull", "nothing-is-like-this")
    with pytest.raises(zoo.ZooError, match="did you mean `small`"):
        zoo.load("smal")


def test_a_folder_is_no_model_of_the_store(project: Path, refused: Refused) -> None:
    (project / "bundle").mkdir()
    (project / "small.safetensors").touch()
    for path in ("bundle", "small.safetensors"):
        assert "help: `zoo bundle verify` checks a folder, `zoo load` any" in refused(
            "verify", path
        )
    assert "help: `zoo pull` brings a model there" in refused("verify", "nothing")


def test_every_name_that_is_not_in_the_store_is_told(store: Store, refused: Refused) -> None:
    told = refused("verify", "one", "two")
    assert "`one` is not in the store" in told
    assert "`two` is not in the store" in told


def test_all_in_a_folder_are_also_the_newest(project: Path, store: Store) -> None:
    left = project / ".zoo-0.tmp"
    left.touch()
    assert run(["gc", str(project)]) == 0
    assert left.exists()
    assert run(["gc", "--all", str(project)]) == 0
    assert not left.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_what_may_not_be_removed_from_a_folder_is_told(project: Path, store: Store) -> None:
    """It keeps its name, by which it is found again."""
    write_files(project, {"closed/.zoo-0.tmp": b"", "open/.zoo-0.tmp/file": b""})
    for closed, folder in (("closed", "closed"), ("open/.zoo-0.tmp", "open")):
        (project / closed).chmod(0o555)
        done = process("gc", "--all", folder, preexec_fn=without_privileges)
        assert done.returncode == 2
        told = f"error: cannot remove `{folder}/.zoo-0.tmp`: Permission denied\n"
        assert done.stderr.startswith(told)
        assert (project / folder / ".zoo-0.tmp").exists()


def test_the_file_of_a_model_is_neither_a_spec_nor_weights(
    published: Path, refused: Refused
) -> None:
    file = "models/small.v1.toml"
    for command in ("build", "show", "validate"):
        told = refused(command, file)
        assert f"{file}: error: this is the file of a published model, not a spec\n" in told
        assert (
            "that a registry's `catalog` names, `small.v1` is its name: `zoo pull small.v1`" in told
        )
    for line in (["load", file], ["run", file, "1"], ["push", file, "to", "--license", "MIT"]):
        told = refused(*line)
        assert "= help: a published model goes by its name: `small.v1`\n" in told
    Path("spec.toml").write_text('format = 1\nname = "small"\n')
    told = refused("load", "spec.toml")
    assert "= help: `zoo build spec.toml -o DIR` makes the initial weights of a spec\n" in told


@pytest.mark.parametrize(
    "command", ["show small.v1", "verify small.v1", "pull small.v1", "gc --all"]
)
def test_what_a_collector_was_about_to_remove_is_there(
    command: str, published: Path, store: Store
) -> None:
    zoo.load("small.v1")
    shutil.rmtree(published)
    shutil.rmtree(store.root / "blobs")
    (snapshot,) = store.snapshots()
    (store.root / "trash").mkdir()
    snapshot.rename(store.root / "trash" / snapshot.name)
    assert run(command.split()) == 0
    assert snapshot.is_dir()


def test_the_list_of_the_store(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store"]) == 0
    assert "\n0 models, 0 B\n" in capsys.readouterr().out
    assert run(["pull", "small"]) == 0
    assert run(["store"]) == 0
    assert "\n1 model, " in capsys.readouterr().out


def test_a_name_of_two_registries_is_an_error(
    project: Path, published: Path, config: Path, refused: Refused
) -> None:
    users = config / "zoo"
    write_files(users, {})
    (users / "own").mkdir(parents=True)
    (users / "registry.toml").write_text('format = 1\ncatalog = "own"\n')
    first = users / "own" / "small.v1.toml"
    first.write_text(entry(LOCAL, bundle()))
    for override in ("", "override = false\n"):
        register(project, "small.v1", override + entry(LOCAL, bundle()))
        told = refused("pull", "small")
        assert "small.v1.toml: error: model `small.v1` is registered twice" in told
        assert f"{first}: note: first registered here" in told
    register(project, "small.v1", "override = true\n" + entry(LOCAL, bundle()))
    assert run(["pull", "small"]) == 0


def test_the_name_of_a_model_means_no_other(
    project: Path, published: Path, refused: Refused
) -> None:
    register(project, "other.v1", entry(LOCAL, bundle()))
    names = project / "models" / "names.toml"
    names.write_text('format = 1\n[alias]\n"small.v1" = "other.v1"\n')
    for command in ("pull", "load"):
        told = refused(command, "small.v1")
        assert "names.toml:3:1: error: `small.v1` is a model itself" in told
        assert "take the line out" in told


@pytest.mark.parametrize("version", ["2", "true", "1.0"])
def test_names_of_another_format_are_refused(
    version: str, project: Path, published: Path, refused: Refused
) -> None:
    (project / "models" / "names.toml").write_text(f"format = {version}\n")
    told = refused("pull", "small")
    assert "names.toml:1:10: error: the names of models state `format = 1`" in told


def test_the_shipped_models_are_sound() -> None:
    """Every file can be read, and every name leads to a file."""
    from zoo.families.registered import Families

    registry = zoo.load_registry()
    known = registry.catalog.known()
    assert len({*known}) == len(known)  # no further name is that of a model itself
    for name in known:
        registry.catalog.file(name)  # raises if it leads nowhere
    families = Families(registry).paths
    for name in registry.catalog.names():
        model = find_pretrained(name, registry)
        assert model is not None
        assert model.is_pinned or model.manifest.trust == "first_use"
        assert model.manifest.spec is None or model.manifest.spec in registry.models, name
        assert model.manifest.family is None or model.manifest.family in families, name
        assert model.manifest.origin, name
        assert model.manifest.license.code, name
        if model.manifest.spec is not None:
            spec = zoo.read_spec(model.manifest.spec, registry=registry)
            assert model.manifest.parameters == spec.n_parameters, name


def test_the_store_tells_what_is_in_it(
    published: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "small"]) == 0
    capsys.readouterr()
    assert run(["store", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (model,) = told["models"]
    assert told["folder"] == str(store.root)
    assert (model["name"], model["version"]) == ("small.v1", *versions(store))
    assert model["bytes"] == sum(map(len, bundle().values()))
    assert model["content_digest"] == zoo.save(zoo.load("small"), "again")
    assert set(contents(Path(model["folder"]))) == set(bundle())
    assert run(["store"]) == 0
    assert f"small.v1@{model['version']}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../models/small.v1", "/etc/passwd", "small/v1", ".", "a\0b"])
def test_a_name_is_no_path(name: str, published: Path, refused: Refused) -> None:
    assert "there is no published model" in refused("pull", name)


@pytest.mark.parametrize(
    ("names", "place", "message", "hint"),
    [
        (
            '[default]\nsmall = "v1"\n[alias]\nwee = "small"\n',
            "5:1",
            "`small` is not the full name of a model, but another name for one",
            "write the full name of a model, `small.v1`",
        ),
        (
            '[alias]\nwee = "lil"\nlil = "wee"\n',
            "3:1",
            "`lil` is not the full name of a model, but another name for one",
            "write the full name of a model",
        ),
        (
            '[alias]\nwee = "smal.v1"\n',
            "3:1",
            "there is no model `smal.v1`",
            "did you mean `small.v1`?",
        ),
    ],
)
def test_a_name_that_means_no_model(
    names: str,
    place: str,
    message: str,
    hint: str,
    project: Path,
    published: Path,
    refused: Refused,
) -> None:
    (project / "models" / "names.toml").write_text(f"format = 1\n{names}")
    for command in ("pull", "load"):
        told = refused(command, "wee")
        assert f"names.toml:{place}: error: {message}\n" in told
        assert f"{hint}\n" in told


@pytest.mark.parametrize("command", ["pull", "rm"])
def test_a_command_about_models_wants_a_name(
    command: str, published: Path, store: Store, refused: Refused
) -> None:
    """None does not mean all: that would be gigabytes, or everything there is."""
    assert run(["pull", "small"]) == 0
    assert "Missing argument 'NAMES...'" in refused(command)
    assert run(["verify"]) == 0


def test_names_are_listed_by_a_pattern(
    project: Path, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register(project, "small.v2", entry(LOCAL, bundle()))
    register(project, "large.v1", entry(LOCAL, bundle()))
    (project / "models" / "small.v3.toml").mkdir()
    assert run(["list", "models", "small*"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == ["small.v1", "small.v2"]


def test_shown_is_what_is_in_the_store(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "small.v1"]) == 2
    assert "zoo pull small.v1" in capsys.readouterr().err
    assert run(["pull", "small.v1"]) == 0
    assert run(["show", "small.v1"]) == 0
    assert "small" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["pull", "load", "show", "build"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("hf://owner/thing@main", "help: `zoo import hf://owner/thing@main` makes a model"),
        (
            "owner/thing",
            "help: `zoo import hf://owner/thing` reads a repository of the Hugging Face",
        ),
        ("owner/gpt2-large", "help: `zoo import hf://owner/gpt2-large` reads a repository"),
        ("owner/gpt2-large", "the Hugging Face hub; did you mean `gpt2-large`?"),
    ],
)
def test_who_names_a_repository_is_told_how_to_import_it(
    command: str, name: str, told: str, published: Path, store: Store, refused: Refused
) -> None:
    assert told in refused(command, name)
