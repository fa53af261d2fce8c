"""Files are written completely or not at all."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from trials import python

import zoo
from zoo.files.atomic import copy_synced, make_folder, new_file, new_folder, sync, write_text

SPEC = """
format = 1
name = "t"
builder = "encoder"
vocab = 9
n_layers = 1
d_model = 8
n_heads = 2
d_ff = 8
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def test_a_new_file_takes_the_place_of_the_old_one(old: Path) -> None:
    with new_file(old) as file:
        file.write(b"n")
        file.flush()
        assert old.read_bytes() == b"old"
        file.write(b"ew")
    assert old.read_bytes() == b"new"
    assert [*old.parent.iterdir()] == [old]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, zoo.ZooError])
def test_after_an_error_the_old_file_is_whole(error: type[BaseException], old: Path) -> None:
    def write_half() -> None:
        with new_file(old) as file:
            file.write(b"half")
            raise error("stop")

    with pytest.raises(error, match="stop"):
        write_half()
    assert old.read_bytes() == b"old"
    assert [*old.parent.iterdir()] == [old]


def test_missing_folders_are_made_and_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    with pytest.raises(zoo.ZooError, match="no space"), new_file(path):
        raise OSError(28, "no space")
    assert [*tmp_path.iterdir()] == []
    with new_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_mode_is_what_the_umask_leaves(mask: int, mode: int, old: Path) -> None:
    before = os.umask(mask)
    try:
        with new_file(old):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(old.stat().st_mode) == mode


def test_the_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a crash could leave the name with half of the bytes."""
    done: list[tuple[str, int]] = []
    sync, rename = os.fsync, Path.replace
    path = tmp_path / "made" / "file"

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        done.append(("sync", found.st_ino))
        assert path.parent.is_dir()
        if stat.S_ISREG(found.st_mode):
            assert found.st_size == 100_000  # all buffers were flushed
        sync(descriptor)

    def replace(self: Path, target: Path) -> Any:
        done.append(("rename", self.stat().st_ino))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    with new_file(path) as file:
        file.write(bytes(99_999))
        file.write(b"x")  # too little to leave the buffer by itself
    inode = path.stat().st_ino
    assert done[:2] == [("sync", inode), ("rename", inode)]
    folders = {("sync", folder.stat().st_ino) for folder in (path.parent, tmp_path)}
    assert set(done[2:]) == folders


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that records the inode and the size of each file that is synced to the disk."""
    done: list[tuple[int, int]] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        done.append((found.st_ino, found.st_size))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return done


def test_a_copy_is_on_disk(tmp_path: Path, synced: list[tuple[int, int]]) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(100))  # too few to leave the buffer by themselves
    copy_synced(source, target)
    assert synced == [(target.stat().st_ino, 100)]


def test_the_files_of_a_folder_are_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[tuple[int, int]]
) -> None:
    rename, before = Path.rename, set[tuple[int, int]]()

    def recorded(self: Path, target: Path) -> Path:
        before.update(synced)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", recorded)
    folder = tmp_path / "made"
    with new_folder(folder) as made:
        (made / "a").write_bytes(bytes(1000))
        (made / "inner").mkdir()
        (made / "inner" / "b").write_bytes(bytes(2000))
    found = [path.stat() for path in (folder, *folder.rglob("*"))]
    assert before == {(status.st_ino, status.st_size) for status in found}


def test_folders_are_on_disk(tmp_path: Path, synced: list[tuple[int, int]]) -> None:
    """Each folder is synced before another is created in it."""
    make_folder(tmp_path / "a" / "b")
    assert [inode for inode, _ in synced] == [p.stat().st_ino for p in (tmp_path, tmp_path / "a")]


def test_syncing_leaves_no_file_open(tmp_path: Path) -> None:
    next_descriptor = os.dup(0)
    os.close(next_descriptor)
    sync(tmp_path)
    found = os.dup(0)
    os.close(found)
    assert found == next_descriptor


FULL = """
import resource, zoo
from pathlib import Path

path = Path("model.safetensors")
zoo.save(zoo.build("spec.toml", seed=0), path)
before, model = path.read_bytes(), zoo.build("spec.toml", seed=1)
for limit in (0, 1, 4096, len(before) - 1):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    try:
        zoo.save(model, path)
    except zoo.ZooError as error:
        print(str(error).split("\\n")[0])
    assert path.read_bytes() == before
    assert {file.name for file in Path().iterdir()} == {"spec.toml", "model.safetensors"}
resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), -1))
zoo.save(model, path)
assert path.read_bytes() != before
"""


def test_on_a_full_disk_the_old_model_is_whole(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    told = python(FULL, cwd=tmp_path)
    assert told == 4 * "error: cannot write `model.safetensors`: File too large\n"


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(zoo.ZooError, match=r"cannot write .*: Is a directory"), new_file(tmp_path):
        pytest.fail("the block must not run")


def test_the_folders_around_a_new_folder_are_taken_back(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), new_folder(tmp_path / "a" / "b"):
        raise ValueError("stop")
    assert [*tmp_path.iterdir()] == []


def test_a_file_is_no_folder(old: Path) -> None:
    with pytest.raises(zoo.ZooError, match="cannot write"), new_file(old / "below" / "file"):
        pytest.fail("the block must not run")
    assert old.read_bytes() == b"old"


def test_what_is_no_regular_file_stays(tmp_path: Path) -> None:
    """As root, a rename over /dev/null would succeed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(zoo.ZooError, match="not a regular file"), new_file(pipe):
        pytest.fail("the block must not run")
    assert pipe.is_fifo()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(there: bool, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "file", tmp_path / "link"
    if there:
        target.write_bytes(b"old")
    link.symlink_to(target)
    with new_file(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_names_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    with new_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(zoo.ZooError, match="File name too long"), new_file(tmp_path / ("n" * 256)):
        pytest.fail("the block must not run")


def test_of_several_writers_one_wins_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([n]) * 300_000 for n in range(8)]
    start = threading.Barrier(len(contents))

    def write(content: bytes) -> None:
        start.wait()
        with new_file(path) as file:
            for part in range(0, len(content), 1000):
                file.write(content[part : part + 1000])

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert [*tmp_path.iterdir()] == [path]


def test_a_folder_that_somebody_else_makes_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def make_second(self: Path, *arguments: Any, **options: Any) -> None:
        make(self)
        make(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", make_second)
    write_text(tmp_path / "a" / "b" / "file", "new")
    assert (tmp_path / "a" / "b" / "file").read_text() == "new"


@pytest.mark.parametrize(("code", "is_told"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_a_disk_that_does_not_keep_names(
    code: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync of the folder is reported, unless the file system cannot sync folders."""
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "a"
    if is_told:
        with pytest.raises(zoo.ZooError, match="is written, but the disk says"):
            write_text(path, "new")
    else:
        write_text(path, "new")
    assert path.read_text() == "new"
