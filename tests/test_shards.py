"""A model in several files is the same model, complete, whatever fails while it is written."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from breadth import slow
from safetensors.torch import load_file
from small_specs import TINY
from trials import python

import zoo
from zoo.saving import described
from zoo.weights.file import Header, Record
from zoo.weights.reader import open_weights, read_header
from zoo.weights.shards import index_bytes, plan_shards, shard_names
from zoo.weights.writer import destination

INDEX = "model.safetensors.index.json"
MOST = 600


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    zoo.save(zoo.build(TINY, seed=3), tmp_path / "sharded", max_shard_bytes=MOST)
    return tmp_path / "sharded"


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def same(one: zoo.Transformer, other: zoo.Transformer) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("most", [1, 100, MOST, 10**9])
def test_shards_come_back_with_the_same_content_digest(most: int, tmp_path: Path) -> None:
    model = zoo.build(TINY, seed=3)
    whole = zoo.save(model, tmp_path / "whole")
    assert zoo.save(model, tmp_path / "sharded", max_shard_bytes=most) == whole
    loaded = zoo.load(tmp_path / "sharded")
    assert same(loaded, model)
    assert loaded.head.out.weight is loaded.decoder.embed.tokens.weight
    assert zoo.save(loaded, tmp_path / "again") == whole
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_index_is_the_standard_one(sharded: Path) -> None:
    """As other programs read it: every tensor is in the shard that the index names, and only
    there."""
    index = json.loads((sharded / INDEX).read_text())
    found = {path.name: load_file(path) for path in shards(sharded)}
    assert {name: file for file, tensors in found.items() for name in tensors} == index[
        "weight_map"
    ]
    sizes = {file: sum(t.nbytes for t in tensors.values()) for file, tensors in found.items()}
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert len(found) > 3
    assert all(size <= MOST or len(found[file]) == 1 for file, size in sizes.items())
    model = zoo.build(TINY, seed=3)
    assert all(
        torch.equal(model.state_dict()[name], tensor)
        for tensors in found.values()
        for name, tensor in tensors.items()
    )


def test_an_index_has_the_same_bytes_for_ever() -> None:
    """Those that were saved are compared with them."""
    records = {name: Record(dtype, (1,), "0" * 64) for name, dtype in (("a", "F32"), ("b", "F64"))}
    header = Header({}, {"zoo": "1", "plugins": {}}, {}, records)
    raw = index_bytes(header, [["b"], ["a"]])
    assert json.loads(raw)["weight_map"] == {
        "a": "model-c1144e38759c-00002-of-00002.safetensors",
        "b": "model-c1144e38759c-00001-of-00002.safetensors",
    }
    digest = "9a88268c39165ab50be857af426dbd9a95468f013c87991601a16b2fa9c72ce4"
    assert hashlib.sha256(raw).hexdigest() == digest


@pytest.mark.parametrize(
    ("sizes", "plan"),
    [
        ([5, 3, 2, 1], ["a", "bc", "d"]),  # full to the last byte
        ([9, 1, 9, 4, 2], ["a", "b", "c", "d", "e"]),  # too large for any shard
        ([0, 0, 5, 0], ["abcd"]),
        ([], [""]),
    ],
)
def test_shards_of_at_most_five_bytes(sizes: list[int], plan: list[str]) -> None:
    named = dict(zip("abcde", sizes, strict=False))
    assert plan_shards(named, 5) == [list(names) for names in plan]


def test_shards_of_one_model_with_other_tensors_have_other_names(tmp_path: Path) -> None:
    """So that the old ones stay until the new index has its name."""
    zoo.save(zoo.build(TINY), tmp_path)
    header = read_header(tmp_path)
    first, second, *others = header.names_in_file()
    plans = [[first], [second, *others]], [[first, second], others]
    one, other = ({*shard_names(header, plan)} for plan in plans)
    assert one.isdisjoint(other)


def test_a_shard_alone_is_no_model(sharded: Path) -> None:
    with pytest.raises(zoo.WeightsError, match=r"(?s)one shard of several.*name the folder"):
        zoo.load(shards(sharded)[0])


def test_saving_again_leaves_one_model(sharded: Path) -> None:
    names = {path.name for path in sharded.iterdir()}
    other = zoo.build(TINY, seed=4)
    zoo.save(other, sharded, max_shard_bytes=MOST)
    assert len(names & {path.name for path in sharded.iterdir()} - {INDEX}) == 0
    assert same(zoo.load(sharded), other)
    zoo.save(zoo.build(TINY, seed=3), sharded, max_shard_bytes=MOST)
    assert {path.name for path in sharded.iterdir()} == names


def test_one_file_takes_the_place_of_shards_and_shards_that_of_a_file(sharded: Path) -> None:
    other = zoo.build(TINY, seed=4)
    zoo.save(other, sharded)
    assert [path.name for path in sharded.iterdir()] == ["model.safetensors"]
    assert same(zoo.load(sharded), other)
    third = zoo.build(TINY, seed=5)
    zoo.save(third, sharded, max_shard_bytes=MOST)
    assert not (sharded / "model.safetensors").exists()
    assert same(zoo.load(sharded), third)


def test_a_file_of_another_name_leaves_shards_alone(sharded: Path) -> None:
    names = {path.name for path in sharded.iterdir()}
    zoo.save(zoo.build(TINY, seed=4), sharded / "other.safetensors")
    assert {path.name for path in sharded.iterdir()} == names | {"other.safetensors"}


def test_somebody_elses_index_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text('{"metadata": {"total_size": 1}, "weight_map": {"a": "b"}}')
    for most in (None, MOST):
        with pytest.raises(zoo.WeightsError, match="not an index of the zoo"):
            zoo.save(zoo.build(TINY), tmp_path, max_shard_bytes=most)
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]


@pytest.mark.parametrize("seed", [4, 3], ids=["another model", "the same model"])
def test_after_an_error_the_old_shards_are_whole(
    seed: int, sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in sharded.iterdir()}
    replace = Path.replace

    def full(fails: str) -> Callable[[Path, Path], Path]:
        def failing(self: Path, target: Path) -> Path:
            if fails in target.name:
                raise OSError(28, "No space left on device")
            return replace(self, target)

        return failing

    for fails in ("-00003-of-", INDEX):
        monkeypatch.setattr(Path, "replace", full(fails))
        with pytest.raises(zoo.ZooError, match="No space left"):
            zoo.save(zoo.build(TINY, seed=seed), sharded, max_shard_bytes=MOST)
        monkeypatch.undo()
        assert {path.name: path.read_bytes() for path in sharded.iterdir()} == before


def test_shards_that_an_index_names_stay(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has its name already when the disk says that it may not keep it."""
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        index = json.loads((sharded / INDEX).read_bytes())
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and index != old:
            raise OSError(5, "Input/output error")
        sync(descriptor)

    old = json.loads((sharded / INDEX).read_bytes())
    model = zoo.build(TINY, seed=4)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(zoo.ZooError, match="is written, but the disk says"):
        zoo.save(model, sharded, max_shard_bytes=MOST)
    assert same(zoo.load(sharded), model)


def test_shards_of_another_writer_stay(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two who write at once, the last to name its index wins, and has all of its shards."""
    old, new = zoo.load(sharded), zoo.build(TINY, seed=4)
    replace = Path.replace

    def before(self: Path, target: Path) -> Path:
        if target.name == INDEX:
            monkeypatch.undo()
            replace(self, target)
            zoo.save(old, sharded, max_shard_bytes=MOST)
            return target
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", before)
    zoo.save(new, sharded, max_shard_bytes=MOST)
    assert same(zoo.load(sharded), old)


def test_beside_somebody_elses_index_nothing_is_removed(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program has written it meanwhile, and may need what is there."""
    before = {path.name for path in sharded.iterdir()}

    def taken(self: Path, target: Path) -> Path:
        if target.name == INDEX:
            target.write_text("{}")
            raise OSError(28, "No space left on device")
        return replace(self, target)

    replace = Path.replace
    monkeypatch.setattr(Path, "replace", taken)
    with pytest.raises(zoo.ZooError, match="No space left"):
        zoo.save(zoo.build(TINY, seed=4), sharded, max_shard_bytes=MOST)
    left = {path.name for path in sharded.iterdir()}
    assert (left > before, len(left)) == (True, 2 * len(before) - 1)


def test_a_shard_that_may_not_be_removed_stays(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of another user, in a folder where each may remove only what is theirs."""
    old, model = shards(sharded), zoo.build(TINY, seed=4)
    unlink = Path.unlink

    def refused(self: Path, missing_ok: bool = False) -> None:
        if self in old[:2]:
            raise PermissionError(1, "Operation not permitted")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    zoo.save(model, sharded, max_shard_bytes=MOST)
    assert same(zoo.load(sharded), model)
    assert [path for path in old if path.exists()] == old[:2]


@pytest.mark.parametrize("most", [None, MOST])
def test_the_bytes_that_are_written_are_told(most: int | None, tmp_path: Path) -> None:
    told: list[int] = []
    with destination(tmp_path / "model", max_shard_bytes=most, on_bytes=told.append) as write:
        write(*described(zoo.build(TINY)))
    files = map(load_file, (tmp_path / "model").glob("*.safetensors"))
    assert sum(told) == sum(tensor.nbytes for file in files for tensor in file.values())


def test_shards_of_two_versions_are_never_mixed(sharded: Path, tmp_path: Path) -> None:
    """Also when one program has put the files of one version over those of the other."""
    zoo.save(zoo.build(TINY, seed=4), tmp_path / "other", max_shard_bytes=MOST)
    for mine, other in zip(shards(sharded), shards(tmp_path / "other"), strict=True):
        kept = mine.read_bytes()
        assert len(kept) == other.stat().st_size
        mine.write_bytes(other.read_bytes())
        for verify in (True, False):
            with pytest.raises(zoo.WeightsError, match="not the shard that"):
                zoo.load(sharded, verify=verify)
        mine.write_bytes(kept)
    zoo.load(sharded)


def test_every_byte_of_every_file_is_in_the_digests_of_its_pieces(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.weights.reader.PIECE", 100)
    with open_weights(sharded) as weights:
        found = weights.blake3()
    for path in [sharded / INDEX, *shards(sharded)]:
        content = path.read_bytes()
        pieces = [content[start : start + 100] for start in range(0, len(content), 100)]
        assert found.pop(path.name) == [blake3(piece).hexdigest() for piece in pieces]
    assert not found


def test_a_change_of_any_of_the_files_meanwhile_is_told(sharded: Path) -> None:
    for path in [sharded / INDEX, *shards(sharded)]:
        with open_weights(sharded) as weights:
            weights.check_unchanged()
            os.utime(path, (0, 0))
            with pytest.raises(zoo.WeightsError, match="it was written to while") as told:
                weights.check_unchanged()
        assert path.name in str(told.value)


def test_a_shard_that_is_shorter_than_its_header(sharded: Path) -> None:
    last = shards(sharded)[-1]
    for size in (0, 7, 100):
        os.truncate(last, size)
        with pytest.raises(zoo.WeightsError, match="not the shard that") as told:
            zoo.load(sharded)
        assert last.name in str(told.value)


@pytest.mark.parametrize("n_missing", [1, 3, 4])
def test_missing_shards(n_missing: int, sharded: Path) -> None:
    files = shards(sharded)
    names = [file.name for file in files[-n_missing:]]
    for name in names:
        (sharded / name).unlink()
    with pytest.raises(zoo.WeightsError) as caught:
        zoo.load(sharded)
    some = ", ".join(f"`{name}`" for name in names[:3]) + (", ..." if n_missing > 3 else "")
    told = f"error: {n_missing} of the {len(files)} files that it names are missing: {some}\n"
    assert told in str(caught.value)


def test_the_shard_that_cannot_be_opened_is_told(sharded: Path) -> None:
    loop = shards(sharded)[2]
    loop.unlink()
    loop.symlink_to(loop.name)
    with pytest.raises(zoo.WeightsError, match=f"{loop.name}: error: cannot be read: Too many"):
        zoo.load(sharded)


def test_an_index_that_is_no_file_is_none(sharded: Path) -> None:
    """The reader does not wait for a writer of a pipe."""
    (sharded / INDEX).unlink()
    os.mkfifo(sharded / INDEX)
    zoo.save(zoo.build(TINY, seed=4), sharded)
    assert same(zoo.load(sharded), zoo.build(TINY, seed=4))


def test_an_index_that_cannot_be_looked_for_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / INDEX).symlink_to(INDEX)
    for most in (None, MOST):
        with pytest.raises(zoo.WeightsError, match=f"{INDEX}: error: cannot be read: Too many"):
            zoo.save(zoo.build(TINY), tmp_path, max_shard_bytes=most)
        with pytest.raises(zoo.ZooError, match="a file has the name of `file`"):
            zoo.save(zoo.build(TINY), tmp_path / "file", max_shard_bytes=most)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"total_size": ', '"total_size": 1'),
        ("-00001-of-", "-00002-of-"),
        ('"model-', '"../model-'),
        ('"weight_map": {', '"weight_map": {"a": 3,'),
        ('"weight_map": {', '"weight_map": {"a": [],'),
        ('"weight_map": {', '"weight_map": [], "more": {'),
        ('"metadata"', '"metadatum"'),
        ("\n", "\r\n"),
        ("}\n", "}"),
    ],
)
def test_an_index_that_is_not_as_it_was_written(old: str, new: str, sharded: Path) -> None:
    path = sharded / INDEX
    text = path.read_text()
    changed = text.replace(old, new)
    assert changed != text
    path.write_text(changed, newline="")
    with pytest.raises(zoo.WeightsError, match=INDEX):
        zoo.load(sharded)


def test_an_index_that_is_too_long_is_not_read(sharded: Path) -> None:
    os.truncate(sharded / INDEX, 2**25 + 1)
    with pytest.raises(zoo.WeightsError, match=r"not a whole .*: it is 33,554,433 bytes long"):
        zoo.load(sharded)


def test_shards_need_a_folder_and_a_size(tmp_path: Path) -> None:
    with pytest.raises(zoo.WeightsError, match="would be a folder"):
        zoo.save(zoo.build(TINY), tmp_path / "a.safetensors", max_shard_bytes=9)
    for most in (0, 1.5, "1MB", True):
        with pytest.raises(zoo.InputError, match="`max_shard_bytes` is an integer of at least 1"):
            zoo.save(zoo.build(TINY), tmp_path, max_shard_bytes=most)
    assert [*tmp_path.iterdir()] == []


# Saves a second version over the first and is killed at the n-th change of the folder, for all n.
KILLED = """
import os, shutil, sys
from pathlib import Path
import torch, zoo, zoo.loading, zoo.saving

torch.set_num_threads(1)
spec, first, second = eval(sys.argv[1]), eval(sys.argv[2]), eval(sys.argv[3])
old, new = zoo.build(spec, seed=1), zoo.build(spec, seed=2)
folder = Path("model")
seen, n = set(), 0
while True:
    shutil.rmtree(folder, ignore_errors=True)
    before, after = zoo.save(old, folder, max_shard_bytes=first), None
    child = os.fork()
    if child == 0:
        left = [n]

        def die(event, arguments):
            if event in ("os.rename", "os.remove", "os.mkdir") or (
                event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
            ):
                if left[0] == 0:
                    os._exit(9)
                left[0] -= 1

        sys.addaudithook(die)
        zoo.save(new, folder, max_shard_bytes=second)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = zoo.load(folder).state_dict()
    states = {name: model.state_dict() for name, model in (("old", old), ("new", new))}
    whole = [
        name
        for name, state in states.items()
        if all(torch.equal(state[key], found[key]) for key in state)
    ]
    assert len(whole) == 1, (n, whole)
    seen.update(whole)
    if status == 0:
        break
    n += 1
assert seen == {"old", "new"}
print(n)
"""


@pytest.mark.parametrize(
    ("first", "second", "fewest"),
    [(600, None, 5), slow(pytest.param(600, 600, 12)), slow(pytest.param(None, 600, 12))],
)
def test_whoever_dies_while_saving_leaves_one_of_the_two(
    first: int | None, second: int | None, fewest: int, tmp_path: Path
) -> None:
    arguments = [repr(TINY), repr(first), repr(second)]
    assert int(python(KILLED, *arguments, cwd=tmp_path)) >= fewest
