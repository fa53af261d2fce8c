"""Models of users can be shared with one command and are the same when pulled: folders of
`zoo build`, `zoo import`, `zoo train` and `zoo bundle make`, and the models of this repository."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest
from published_models import SPEC, entry, register, sha256
from test_docs import make_checkpoint
from test_sentence_folders import source as sentence_folder
from toy_training import RECIPE, write_toy
from trials import Refused, contents

import zoo
from zoo.cli import run
from zoo.files.of_model import SELECTED, find_files
from zoo.provenance.card import LicenseWarning
from zoo.store.files import Store, digests
from zoo.store.refs import refs, write_ref
from zoo.weights.reader import open_weights

ROOT = Path(__file__).parent.parent
PRETRAINED = sorted((ROOT / "pretrained").iterdir())

__all__ = ["sentence_folder"]


def built(folder: Path) -> None:
    Path("small.toml").write_text(SPEC)
    assert run(["build", "small.toml", "-o", str(folder)]) == 0


def sharded(folder: Path) -> None:
    Path("small.toml").write_text(SPEC)
    assert run(["build", "small.toml", "-o", str(folder), "--max-shard-bytes", "2000"]) == 0


def bundled(folder: Path) -> None:
    built(Path("to_bundle"))
    assert run(["bundle", "make", "to_bundle", str(folder), "--license", "CC0-1.0"]) == 0


MADE = {make.__name__: make for make in (built, sharded, bundled)}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return existing folders: of a training, an import, and the models of this repository."""
    folder = tmp_path_factory.mktemp("training")
    recipe = write_toy(folder, RECIPE.replace("steps = 12", "steps = 4"))
    assert run(["train", str(recipe), "-o", str(folder / "out")]) == 0
    make_checkpoint(folder / "checkpoint")
    assert run(["import", str(folder / "checkpoint"), "-o", str(folder / "imported")]) == 0
    ours = {path.name: path for path in PRETRAINED}
    return {"trained": folder / "out", "imported": folder / "imported", **ours}


@pytest.fixture
def memory() -> Generator[None]:
    import fsspec

    yield
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Change to the folder of another user, with a store of its own."""

    def go() -> Path:
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("ZOO_HOME", str(folder / "home"))
        return folder

    return go


def shared(address: str, elsewhere: Callable[[], Path]) -> Path:
    """Push `model` and pull it elsewhere; return the contents of the store there."""
    assert run(["push", "model", address, "--license", "CC0-1.0", "-o", "card.toml"]) == 0
    card = Path("card.toml").read_text()
    there = elsewhere()
    register(there, "mine.v1", card)
    assert run(["pull", "mine.v1"]) == 0
    assert run(["verify", "mine.v1", "--fingerprint"]) == 0
    (snapshot,) = (there / "home" / "snapshots").iterdir()
    return snapshot


@pytest.mark.parametrize("address", ["folder", "memory", "file"])
@pytest.mark.parametrize(
    "kind", [*MADE, "trained", "imported", *(path.name for path in PRETRAINED)]
)
def test_a_folder_is_shared_in_one_command(
    kind: str,
    address: str,
    there: dict[str, Path],
    project: Path,
    store: Store,
    memory: None,
    elsewhere: Callable[[], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if kind in there:
        shutil.copytree(there[kind], "model")
    else:
        MADE[kind](project / "model")
    capsys.readouterr()
    targets = {"memory": "memory://bucket/m", "file": f"file://{project}/there"}
    snapshot = shared(targets.get(address, str(project / "there" / "m")), elsewhere)
    output = capsys.readouterr()
    left_out = "left out: checkpoints/, loss.svg, metrics.json\n" if kind == "trained" else ""
    assert output.err == left_out
    assert "outputs within" in output.out
    own = find_files(project / "model", SELECTED)
    assert contents(snapshot) == {name: (project / "model" / name).read_bytes() for name in own}
    assert zoo.load("mine.v1").spec == zoo.load(project / "model").spec


def test_a_model_and_its_file_are_moved_together(
    project: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a push to a relative path, the file names no path of this machine; an absolute path
    stays."""
    Path("linked").symlink_to("disk/models", target_is_directory=True)
    Path("disk/models").mkdir(parents=True)
    built(project / "model")
    push = ("push", "model", "--license", "CC0-1.0", "-o")
    assert run([*push, "linked/mine.v1.toml", "disk/weights/mine"]) == 0
    card = Path("disk/models/mine.v1.toml")
    assert str(project) not in card.read_text()
    assert 'path = "../weights/mine"' in card.read_text()
    assert run([*push, "other.toml", str(project / "disk/weights/other")]) == 0
    assert f'path = "{project}/disk/weights/other"' in Path("other.toml").read_text()
    moved = tmp_path / "moved"
    shutil.move("disk", moved)
    (moved / "registry.toml").write_text('format = 1\ncatalog = "models"\n')
    monkeypatch.chdir(moved)
    assert run(["pull", "mine.v1"]) == 0
    assert zoo.load("mine.v1").spec == zoo.load(project / "model").spec


@pytest.mark.parametrize(
    "output",
    [
        "cards",
        "mine.v1",
        "my model.toml",
        "größe.toml",
        "cards/names.toml",
        "d.toml",
        f"{'m' * 129}.toml",
    ],
)
def test_a_file_that_names_no_model_is_refused_before_anything_is_pushed(
    output: str, project: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("cards", "d.toml"):
        (project / folder).mkdir()
    built(project / "model")
    before = contents(project)
    capsys.readouterr()
    assert run(["push", "model", "there", "--license", "CC0-1.0", "-o", output]) == 2
    told = capsys.readouterr().err
    assert "is not the name of a model's file" in told
    assert "a name has up to 128 of the letters A to Z and a to z, digits, `.`, `_` and `-`" in told
    assert contents(project) == before


def test_what_is_pushed_as_json(
    project: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    built(project / "model")
    (project / "model" / "loss.svg").write_text("<svg/>")
    push = ("push", "model", "--license", "CC0-1.0", "--json")
    capsys.readouterr()
    assert run([*push, "one", "-o", "mine.v1.toml"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["left_out"]) == ("mine.v1.toml", ["loss.svg"])
    assert told["text"] == Path("mine.v1.toml").read_text()
    assert run([*push, "two"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] is None
    assert told["text"] == Path("mine.v1.toml").read_text().replace('"one"', f'"{project}/two"')
    Path("taken").write_text("a file where the folder would be")
    assert run([*push, "three", "-o", "taken/mine.v1.toml"]) == 2
    told = json.loads(capsys.readouterr().out)  # the text of what is published is not lost
    assert told["path"] is None
    assert "format = 1" in told["text"]


def test_the_file_of_a_model_that_is_published_stays(project: Path, refused: Refused) -> None:
    built(project / "model")
    assert run(["push", "model", "one", "--license", "CC0-1.0", "-o", "mine.v1.toml"]) == 0
    told = refused("push", "model", "two", "--license", "CC0-1.0", "-o", "mine.v1.toml")
    assert "`mine.v1.toml` is there already" in told
    told = refused("push", "model", "one", "--license", "CC0-1.0")
    assert f"`{project / 'one'}` is there already\n" in told


def test_the_licence_is_that_of_the_card_unless_it_is_given(
    project: Path, store: Store, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    built(project / "model")
    for card, reason in (
        (None, "error: `model` has no README.md that states the `license` of its weights"),
        ("# Mine\n", "does not state a `license`"),
        ("---\nlicense:\n---\n", "does not state a `license`"),
        ("---\nlicense: [mit, isc]\n---\n", "does not state a `license`"),
        ("---\nlicense: unknown\n---\n", "does not state a `license`"),
        ("---\nlicense: [\n---\n", "does not state a `license`"),
        ("---\nlanguage: en\n---\nlicense: mit\n", "does not state a `license`"),
    ):
        if card is not None:
            (project / "model" / "README.md").write_text(card)
        told = refused("push", "model", "there")
        assert reason in told
        assert "help: `--license`" in told
    assert run(["bundle", "make", "model", "bundle", "--license", "apache-2.0"]) == 0
    capsys.readouterr()
    assert run(["push", "bundle", "there"]) == 0
    assert 'weights = "apache-2.0"' in capsys.readouterr().out
    with pytest.warns(LicenseWarning, match="is `MIT`, and `bundle/README.md` states `apache-2.0`"):
        assert run(["push", "bundle", "elsewhere", "--license", "MIT"]) == 0
    assert 'weights = "MIT"' in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(["push", "bundle", "third", "--license", "Apache-2.0"]) == 0


def test_what_is_printed_says_where_the_model_is_from_everywhere(
    project: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The future place of the printed file is not known."""
    built(project / "model")
    capsys.readouterr()
    assert run(["push", "model", "weights/mine", "--license", "CC0-1.0"]) == 0
    assert f'path = "{project}/weights/mine"' in capsys.readouterr().out


@pytest.mark.parametrize("folder", PRETRAINED, ids=lambda folder: folder.name)
def test_a_model_of_ours_does_from_a_bundle_what_it_does_here(
    folder: Path,
    project: Path,
    store: Store,
    elsewhere: Callable[[], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["bundle", "make", str(folder), "model"]) == 0
    assert (project / "model" / "README.md").read_bytes() == (folder / "README.md").read_bytes()
    shared(str(project / "there"), elsewhere)
    capsys.readouterr()
    assert run(["run", str(folder), "Ich möchte ein Bier."]) == 0
    here = capsys.readouterr().out
    assert run(["run", "mine.v1", "Ich möchte ein Bier."]) == 0
    assert capsys.readouterr().out == here
    assert "beer" in here


def test_an_imported_model_keeps_all_that_came_along(
    sentence_folder: Path, project: Path, store: Store, elsewhere: Callable[[], Path]
) -> None:
    """Import, bundle, push, pull, export: the output equals the input, modules included."""
    for name in ("sentence_bert_config.json", "config_sentence_transformers.json"):
        (sentence_folder / name).write_text(json.dumps({"name": name}))
    (sentence_folder / "spm.model").write_bytes(b"\0pieces")
    before = contents(sentence_folder)
    assert run(["import", str(sentence_folder), "-o", "imported"]) == 0
    assert run(["bundle", "make", "imported", "model"]) == 0
    assert run(["bundle", "verify", "model"]) == 0
    shared(str(project / "there"), elsewhere)
    assert run(["export", "mine.v1", "--to", "hf", "-o", "exported"]) == 0
    after = contents(Path("exported"))
    assert after.keys() == before.keys()
    same = [name for name in before if not name.endswith("safetensors")]
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_a_published_checkpoint_is_imported_when_it_is_pulled(
    project: Path, store: Store, refused: Refused
) -> None:
    make_checkpoint(project / "theirs")
    (project / "theirs" / "README.md").write_text("# Theirs\n")
    files = {path: content for path, content in contents(Path("theirs")).items() if content}
    source = {"kind": "local", "path": "../theirs"}
    register(project, "mine.v1", entry(source, files, 'family = "gpt2"'))
    told = refused("pull", "mine.v1")
    assert "mine.v1.toml:2:10: error: the family that reads it is `llama`" in told
    register(project, "mine.v1", entry(source, files, 'family = "llama"'))
    assert run(["pull", "mine.v1"]) == 0
    assert run(["verify", "mine.v1"]) == 0
    (ref,) = refs(store)
    assert {path: file.sha256 for path, file in ref.published.items()} == {
        path: sha256(content) for path, content in files.items()
    }
    assert contents(store.snapshot(ref.files))["README.md"] == files["README.md"]
    assert run(["import", "theirs", "-o", "imported", "--name", "mine.v1"]) == 0
    pulled, imported = zoo.load("mine.v1"), zoo.load("imported")
    assert pulled.spec == imported.spec
    state = imported.state_dict()
    assert all(tensor.equal(state[name]) for name, tensor in pulled.state_dict().items())
    assert pulled.origin == imported.origin


@pytest.mark.parametrize("name", ["model.safetensors", "README.md"])
def test_what_was_made_of_a_published_checkpoint_is_held_against_the_registry(
    name: str, project: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody has changed the store, and the digests that are kept there."""
    make_checkpoint(project / "theirs")
    (project / "theirs" / "README.md").write_text("# Theirs\n")
    assert run(["import", "theirs", "-o", "imported", "--name", "mine.v1"]) == 0
    digest = zoo.save(zoo.load("imported"), "again")
    files = {path: content for path, content in contents(Path("theirs")).items() if content}
    lines = ('family = "llama"', f'content_digest = "{digest}"')
    register(project, "mine.v1", entry({"kind": "local", "path": "../theirs"}, files, *lines))
    assert run(["pull", "mine.v1"]) == 0
    (right,) = refs(store)
    other = project / "other"
    shutil.copytree(store.snapshot(right.files), other)
    (other / name).chmod(0o644)
    if name == "README.md":
        (other / name).write_text("another")
    else:  # its header has the content digest, whose bytes it does not have
        content = (other / name).read_bytes()
        (other / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    made = digests(other)
    with store.work() as work, open_weights(other) as weights:
        store.add(other, made, work)
        write_ref(store, replace(right, files=made, blake3=weights.blake3()))
    capsys.readouterr()
    assert run(["verify", "mine.v1"]) == 2
    assert capsys.readouterr().out == f"mine.v1@{right.version}: damaged: {name}\n"
    assert run(["pull", "mine.v1"]) == 0
    assert list(refs(store)) == [right]
    assert run(["verify", "mine.v1"]) == 0


def test_the_catalogue_holds_all_of_our_models_files() -> None:
    """And no other files."""
    from zoo.store.pretrained import find_pretrained

    registry = zoo.load_registry()
    for folder in PRETRAINED:
        stated = find_pretrained(folder.name, registry)
        assert stated is not None
        assert list(stated.manifest.files) == find_files(folder, SELECTED)
        assert stated.manifest.fingerprint is not None
