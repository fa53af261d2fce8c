"""A bundle restores exactly the model that was bundled, or raises an error."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

import zoo
from zoo.bundle import read_bundle, write_bundle
from zoo.cli import run
from zoo.provenance.card import CardFields, LicenseWarning, card_text, stated_license
from zoo.provenance.lock import Upstream
from zoo.weights.reader import read_header

PROJECTS = Path(__file__).parent / "projects"

TINY = {
    "format": 1,
    "name": "tiny",
    "builder": "encoder",
    "vocab": 5,
    "n_layers": 1,
    "d_model": 4,
    "n_heads": 1,
    "d_ff": 4,
    "norm": "rms_norm",
    "position": "none",
    "bias": False,
}


@pytest.fixture
def saved(project: Path) -> Path:
    """Return a model with a tokenizer, and with files that do not belong to it."""
    zoo.save(zoo.build(TINY, seed=3), "saved")
    Path("saved/tokenizer.json").write_text('{"version": "1.0"}')
    Path("saved/vocab.txt").write_text("a\nb\n")
    Path("saved/setup.py").write_text("raise SystemExit")
    Path("saved/.gitattributes").write_text("*.bin filter=lfs")
    return Path("saved")


def bundled(saved: Path, folder: Path, most: int | None = None) -> Path:
    source = Upstream("owner/tiny", "607a30d")
    card = CardFields("apache-2.0", ("text-generation",))
    registry = zoo.load_registry()
    write_bundle(saved, folder, registry=registry, card=card, source=source, max_shard_bytes=most)
    return folder


@pytest.fixture
def bundle(saved: Path) -> Path:
    return bundled(saved, Path("bundle"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- what is in it --------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [None, 100])
def test_what_is_bundled_comes_back(most: int | None, saved: Path) -> None:
    folder = bundled(saved, Path("bundle"), most)
    loaded, wanted = zoo.load(folder).state_dict(), zoo.load(saved).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.items())
    found = files(folder)
    weights = {name for name in found if "safetensors" in name}
    assert found.keys() - weights == {
        "README.md",
        "spec.toml",
        "tokenizer.json",
        "vocab.txt",
        "zoo.lock",
    }
    assert weights == {"model.safetensors"} if most is None else len(weights) > 3
    assert found["vocab.txt"] == b"a\nb\n"
    if most is None:
        assert found["model.safetensors"] == (saved / "model.safetensors").read_bytes()


def test_the_lock_tells_of_every_file_as_other_programs_see_it(bundle: Path) -> None:
    found = files(bundle)
    lock = tomllib.loads(found.pop("zoo.lock").decode())
    assert lock["files"] == {
        name: {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
        for name, raw in found.items()
    }
    assert lock["torch"] == torch.__version__.partition("+")[0]
    assert lock["zoo"] == zoo.__version__
    assert lock["spec"] == zoo.read_spec(TINY).digest
    assert lock["weights"]["content"] == zoo.save(zoo.load(bundle), "again")
    assert lock["source"] == {"name": "owner/tiny", "revision": "607a30d"}
    assert lock["plugins"]["norm.rms_norm"] == f"zoo {zoo.__version__}"


def test_the_spec_beside_the_weights_builds_the_same_model(bundle: Path) -> None:
    assert zoo.read_spec(bundle / "spec.toml") == zoo.load(bundle).spec


def test_hubs_read_the_metadata_of_the_card(bundle: Path) -> None:
    """As huggingface_hub does."""
    data = ModelCard.load(bundle / "README.md").data.to_dict()
    assert data["license"] == "apache-2.0"
    assert data["library_name"] == "zoo"
    assert data["tags"] == ["zoo", "transformer", "text-generation"]


def test_the_card_names_the_components_that_a_bundle_does_not_hold(project: Path) -> None:
    shutil.copytree(PROJECTS / "own_ffn", project, dirs_exist_ok=True)
    zoo.save(zoo.build("spec.toml"), "own")
    text = (bundled(project / "own", Path("bundle")) / "README.md").read_text()
    digest = hashlib.sha256(Path("plugins/bilinear.py").read_bytes()).hexdigest()
    named = [line for line in text.splitlines() if line.startswith("- `")]
    assert named == [f"- `ffn.bilinear`, a file with the SHA-256 `{digest}`"]
    lock = replace(read_bundle(Path("bundle")).lock, plugins={"ffn.a": "their-parts 1.2"})
    text = card_text(zoo.read_spec("spec.toml"), lock, CardFields())
    assert " names them:\n\n- `ffn.a`, of `their-parts 1.2`\n\n| |" in text
    lock = replace(lock, plugins={"ffn.mlp": "zoo 0.1.0"})
    assert "needs" not in card_text(zoo.read_spec("spec.toml"), lock, CardFields())


def test_the_same_model_gives_the_same_bundle(bundle: Path, saved: Path) -> None:
    assert files(bundled(saved, Path("again"))) == files(bundle)
    shutil.copytree(bundle, "copy")
    assert files(bundled(Path("copy"), Path("third"))) == files(bundle)


def test_a_card_of_ones_own(saved: Path) -> None:
    registry = zoo.load_registry()
    Path("card.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    write_bundle(saved, Path("bundle"), registry=registry, card=Path("card.md"))
    assert Path("bundle/README.md").read_text().endswith("# Mine\n")
    for text in ("# Mine\n", "---\nlicense: mit\n", "# Mine\n---\nlicense: mit\n---\n"):
        Path("card.md").write_text(text)
        with pytest.raises(zoo.ZooError, match="no metadata block"):
            write_bundle(saved, Path("other"), registry=registry, card=Path("card.md"))
    Path("card.md").write_bytes(b"---\nlicense: mit\n---\n\xff")
    with pytest.raises(zoo.ZooError, match=r"card\.md: error: the card cannot be read"):
        write_bundle(saved, Path("other"), registry=registry, card=Path("card.md"))
    assert not Path("other").exists()


def test_nothing_is_overwritten_and_nothing_is_left_of_a_failure(bundle: Path, saved: Path) -> None:
    before = files(bundle)
    with pytest.raises(zoo.ZooError, match=r"`bundle` is there already\n.*name a new folder"):
        bundled(saved, bundle)
    assert files(bundle) == before
    raw = bytearray((saved / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (saved / "model.safetensors").write_bytes(raw)
    names = {path.name for path in Path().iterdir()}
    with pytest.raises(zoo.WeightsError, match="are not those that were saved"):
        bundled(saved, Path("other"))
    assert {path.name for path in Path().iterdir()} == names


def test_a_full_disk_is_told_of_the_bundle(saved: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(zoo.ZooError) as caught:
            bundled(saved, Path("made"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (problem,) = caught.value.problems
    assert problem.message == "cannot write `made/model.safetensors`: File too large"


def test_a_bundle_whose_lock_could_not_be_read_is_not_made(saved: Path) -> None:
    path = saved / "model.safetensors"
    raw = path.read_bytes()
    header = read_header(path)
    plugins = {**header.plugins, **{f"ffn.x{n}": "a" * 400 for n in range(1000)}}
    provenance = {**header.provenance, "plugins": plugins}
    content = raw[len(header.to_bytes()) :]
    path.write_bytes(replace(header, provenance=provenance).to_bytes() + content)
    with pytest.raises(zoo.WeightsError, match="lock is damaged: it is longer than 262,144 bytes"):
        bundled(saved, Path("bundle"))
    assert not Path("bundle").exists()


def test_a_folder_without_what_is_asked_of_it(saved: Path) -> None:
    """Otherwise only the recipient would notice that the named tokenizer is missing."""
    Path("empty").mkdir()
    with pytest.raises(zoo.ZooError, match="nothing in `empty` belongs to a model"):
        write_bundle(
            saved,
            Path("other"),
            registry=zoo.load_registry(),
            card=CardFields(),
            companions=Path("empty"),
        )
    assert not Path("other").exists()


@pytest.mark.parametrize("name", ["merges.txt", "1_Pooling"])
def test_what_lies_outside_is_not_bundled(name: str, saved: Path) -> None:
    """A folder from elsewhere may hold links to what must not be published."""
    Path("outside").mkdir()
    Path("outside/config.json").write_text("{}")
    (saved / name).symlink_to("../outside/config.json" if "." in name else "../outside")
    with pytest.raises(zoo.WeightsError, match=f"saved/{name}.*: error: it is a link that leads"):
        bundled(saved, Path("bundle"))
    assert not Path("bundle").exists()


def test_a_folder_may_be_named_by_a_link_and_hold_links_to_its_own_files(saved: Path) -> None:
    (saved / "merges.txt").symlink_to("vocab.txt")
    Path("elsewhere").mkdir()
    Path("elsewhere/link").symlink_to(Path("saved").absolute())
    made = bundled(Path("elsewhere/link"), Path("bundle"))
    assert (made / "merges.txt").read_bytes() == (saved / "vocab.txt").read_bytes()
    assert not (made / "merges.txt").is_symlink()


# --- what is refused ------------------------------------------------------------------------------


def refused(bundle: Path, *parts: str) -> str:
    """Return the errors of checking a bundle. Loading reports them too, except for weights."""
    with pytest.raises(zoo.WeightsError) as caught:
        read_bundle(bundle)
    with pytest.raises(zoo.ZooError):
        zoo.load(bundle)
    for part in parts:
        assert part in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "step", [7, pytest.param(1, marks=pytest.mark.drill)], ids=["test", "drill"]
)
def test_every_single_byte_counts(bundle: Path, step: int) -> None:
    """If one bit of any byte of any file is changed, the bundle is not loaded."""
    registry = zoo.load_registry()
    for path in sorted(bundle.iterdir()):
        raw = path.read_bytes()
        # Of the lock, whose digests hold the other files whole, more bytes than of those.
        each = step if path.name == "zoo.lock" else step**2
        for at in {*range(0, len(raw), each), len(raw) - 1}:
            path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :])
            with pytest.raises(zoo.ZooError):
                zoo.load(bundle, registry=registry)
        path.write_bytes(raw)
    read_bundle(bundle)


@pytest.mark.drill
def test_every_single_byte_counts_in_every_bit(bundle: Path) -> None:
    for path in sorted(bundle.iterdir()):
        raw = path.read_bytes()
        for at in range(8 * len(raw)):
            changed = raw[at // 8] ^ (1 << at % 8)
            path.write_bytes(raw[: at // 8] + bytes([changed]) + raw[at // 8 + 1 :])
            with pytest.raises(zoo.WeightsError):
                read_bundle(bundle)
        path.write_bytes(raw)
    read_bundle(bundle)


EXTRA = [
    ".git",
    ".gitattributes",
    ".gitignore",
    ".DS_Store",
    "config.json",
    "model.bin",
    "model-000000000000-00001-of-00001.safetensors",
    "model.safetensors.index.json",
    "modeling_tiny.py",
    "pytorch_model.bin",
    "registry.toml",
    "zoo.lock.sig",
    "LICENSE",
    " ",
    "a\nb",
    "ü",
    "a\x1b]0;P\x07",
]


@pytest.mark.parametrize("name", EXTRA)
def test_a_file_that_the_lock_does_not_tell_of(name: str, bundle: Path) -> None:
    (bundle / name).write_bytes(b"")
    refused(bundle, "not listed in zoo.lock")


@pytest.mark.parametrize("name", [".git", "plugins", "__pycache__", "model.sig"])
def test_a_folder_in_a_bundle(name: str, bundle: Path) -> None:
    (bundle / name).mkdir()
    refused(bundle, name)


def test_the_folders_of_modules(saved: Path) -> None:
    """A bundle has the folders of files in its lock, and no other files in them."""
    module = Path("saved/1_Pooling")
    module.mkdir()
    (module / "config.json").write_text("{}")
    (module / "run.py").touch()
    made = bundled(saved, Path("bundle"))
    assert [path.name for path in (made / "1_Pooling").iterdir()] == ["config.json"]
    assert "1_Pooling/config.json" in read_bundle(made).lock.files
    for name in ("run.py", ".git", "model.safetensors"):
        (made / "1_Pooling" / name).touch()
        refused(made, f"1_Pooling/{name}", "not listed in zoo.lock")
        (made / "1_Pooling" / name).unlink()
    (made / "2_Dense").mkdir()
    refused(made, "2_Dense", "not listed in zoo.lock")
    (made / "2_Dense").rmdir()
    (made / "1_Pooling").rename(Path("elsewhere"))
    refused(made, "1_Pooling/config.json", "listed in zoo.lock, but missing")
    (made / "1_Pooling").symlink_to(Path("elsewhere").absolute())
    refused(made, "1_Pooling", "not listed in zoo.lock")
    (made / "1_Pooling").unlink()
    (made / "1_Pooling").touch()
    refused(made, "1_Pooling", "not listed in zoo.lock")


@pytest.mark.parametrize("name", ["spec.toml", "model.safetensors", "README.md", "vocab.txt"])
def test_links_pipes_and_missing_files(name: str, bundle: Path) -> None:
    path = bundle / name
    path.rename(Path("elsewhere"))
    refused(bundle, "listed in zoo.lock, but missing")
    path.symlink_to(Path("elsewhere").absolute())
    refused(bundle, "regular files only")
    path.unlink()
    os.mkfifo(path)
    refused(bundle, "regular files only")


def relocked(bundle: Path, change: Callable[[Path], None] | None = None, **stated: object) -> None:
    """Do what an attacker can: change files, and the lock with them, including its own SHA-256."""
    from zoo.provenance.lock import FileRecord, Lock, read_lock

    lock = read_lock(bundle)
    if change is not None:
        change(bundle)
    found = {path.name: path.read_bytes() for path in bundle.iterdir() if path.is_file()}
    del found["zoo.lock"]
    records = {n: FileRecord(hashlib.sha256(r).hexdigest(), len(r)) for n, r in found.items()}
    fields = {field: getattr(lock, field) for field in Lock.__dataclass_fields__}
    text = Lock(**{**fields, "files": records, **stated}).to_text()
    (bundle / "zoo.lock").write_text(text)


def reweigh(bundle: Path) -> None:
    zoo.save(zoo.build({**TINY, "vocab": 6}), bundle)


def respec(bundle: Path) -> None:
    path = bundle / "spec.toml"
    path.write_text(path.read_text().replace("vocab = 5", "vocab = 6"))


def respell(bundle: Path) -> None:
    path = bundle / "spec.toml"
    assert "bias = false" in path.read_text()
    path.write_text(path.read_text().replace("bias = false", "bias = 0"))


def extend(bundle: Path) -> None:
    path = bundle / "spec.toml"
    path.write_text('extends = "../saved/spec.toml"\n' + path.read_text())


LIES: dict[str, tuple[Callable[[Path], None] | None, dict[str, object], str]] = {
    "other weights": (reweigh, {}, "weights is not that of the weights"),
    "other spec": (respec, {}, "the spec is not that of the weights beside it"),
    "spec of other types": (respell, {}, "the spec is not that of the weights beside it"),
    "spec with a date": (
        lambda b: (b / "spec.toml").write_text("format = 1979-05-27\n"),
        {},
        "the spec is not that of the weights beside it",
    ),
    "spec that extends": (extend, {}, "the spec is not that of the weights beside it"),
    "other name": (None, {"name": "other"}, "model's name is not that of the weights"),
    "other zoo": (None, {"zoo": "9"}, "zoo's version is not that of the weights"),
    "other plugins": (None, {"plugins": {"ffn.mlp": "zoo 9"}}, "plugins is not that"),
    "other spec digest": (None, {"spec": "sha256:" + "0" * 64}, "spec is not that of"),
    "other content": (None, {"content": "sha256:" + "0" * 64}, "content digest is not that"),
    "code": (lambda b: (b / "model.py").write_text(""), {}, "`model.py`, which does not belong in"),
    "hidden": (
        lambda b: (b / ".gitignore").write_text(""),
        {},
        "`.gitignore`, which does not belong",
    ),
    "registry": (lambda b: (b / "registry.toml").write_text(""), {}, "`registry.toml`, which does"),
    "pickle": (
        lambda b: (b / "model.bin").write_text(""),
        {},
        "`model.bin`, which does not belong in",
    ),
    "second weights": (
        lambda b: (b / "model.safetensors.index.json").write_text("{}"),
        {},
        "lists either",
    ),
    "stray shard": (
        lambda b: (b / "model-0123456789ab-00001-of-00002.safetensors").write_text("{}"),
        {},
        "the lock's files are not those of the weights",
    ),
    "no card": (lambda b: (b / "README.md").unlink(), {}, "does not list `README.md`"),
    "no spec": (lambda b: (b / "spec.toml").unlink(), {}, "does not list `spec.toml`"),
}


@pytest.mark.parametrize(("change", "stated", "message"), LIES.values(), ids=LIES)
def test_a_lock_that_lies(
    change: Callable[[Path], None] | None, stated: dict[str, object], message: str, bundle: Path
) -> None:
    relocked(bundle)
    read_bundle(bundle)
    relocked(bundle, change, **stated)
    with pytest.raises(zoo.WeightsError) as caught:
        read_bundle(bundle)
    assert message in str(caught.value)
    with pytest.raises(zoo.ZooError):
        zoo.load(bundle)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "a\\b", "", "zoo.lock", "."])
def test_a_lock_that_names_what_is_elsewhere(name: str, bundle: Path) -> None:
    from zoo.provenance.lock import FileRecord, read_lock

    files = {**read_lock(bundle).files, name: FileRecord("0" * 64, 1)}
    relocked(bundle, files=files)
    message = f"zoo.lock lists `{name}`, which" if name else "zoo.lock: error: the lock is damaged"
    with pytest.raises(zoo.WeightsError, match=re.escape(message)):
        read_bundle(bundle)


def test_all_that_is_wrong_is_told_at_once(bundle: Path) -> None:
    (bundle / ".git").mkdir()
    (bundle / "x.py").write_text("")
    (bundle / "vocab.txt").unlink()
    (bundle / "tokenizer.json").write_text("{}")
    with pytest.raises(zoo.WeightsError) as caught:
        read_bundle(bundle)
    assert len(caught.value.problems) == 4


# --- the commands ---------------------------------------------------------------------------------


def test_the_commands_make_and_check_a_bundle(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--license", "mit", "--source", "owner/tiny@607a30d", "--max-shard-bytes", "100"]
    assert run(["bundle", "make", "saved", "made", *arguments, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["content_digest"] == zoo.save(zoo.load("made"), "again")
    assert run(["bundle", "verify", "made", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made
    assert made["signature"] == "none"
    assert "model.safetensors.index.json" in made["files"]
    assert made["files"].keys() == files(Path("made")).keys() - {"zoo.lock"}
    assert run(["load", "made", "--locked"]) == 0
    Path("made/x").touch()
    for command in (["bundle", "verify", "made"], ["load", "made"]):
        assert run(command) == 2
        assert "made/x: error: not listed in zoo.lock" in capsys.readouterr().err


def test_a_card_that_is_there_is_taken(saved: Path) -> None:
    """Unless another card is requested."""
    card = "---\nlicense: mit\n---\n# Mine\n"
    Path("saved/README.md").write_text(card)
    assert run(["bundle", "make", "saved", "made"]) == 0
    assert Path("made/README.md").read_text() == card
    Path("saved/README.md").write_text("---\nlicense: mit\n---")  # as hubs allow it
    assert ModelCard.load("saved/README.md").data.license == "mit"
    assert run(["bundle", "make", "saved", "short"]) == 0
    assert stated_license(Path("short/README.md")) == "mit"
    assert run(["bundle", "make", "saved", "other", "--license", "apache-2.0"]) == 0
    assert 'license: "apache-2.0"' in Path("other/README.md").read_text()
    assert run(["bundle", "make", "saved", "tagged", "--tag", "tiny"]) == 0
    assert '- "tiny"' in Path("tagged/README.md").read_text()


def test_a_card_has_at_most_10_million_characters(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = "---\nlicense: mit\n---\n"
    Path("saved/README.md").write_text(card.ljust(10_000_000))
    assert run(["bundle", "make", "saved", "made"]) == 0
    Path("saved/README.md").write_text(card.ljust(10_000_001))
    assert run(["bundle", "make", "saved", "other"]) == 2
    told = "saved/README.md: error: the card has more than 10,000,000 characters"
    assert told in capsys.readouterr().err


def test_another_licence_than_that_of_the_card_is_told(saved: Path) -> None:
    (saved / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    with pytest.warns(LicenseWarning, match="is `mit`, and `saved/README.md` states `cc-by-nc"):
        assert run(["bundle", "make", "saved", "made", "--license", "mit"]) == 0


def test_a_card_does_not_claim_to_know_who_made_the_weights(saved: Path) -> None:
    assert run(["bundle", "make", "saved", "made"]) == 0
    assert "| source | not stated |\n" in Path("made/README.md").read_text()


def test_an_expression_of_licences_is_stated_and_read(saved: Path) -> None:
    stated = "MIT OR Apache-2.0"
    assert run(["bundle", "make", "saved", "made", "--license", stated]) == 0
    assert ModelCard.load("made/README.md").data.license == stated
    assert stated_license(Path("made/README.md")) == stated
    Path("list.md").write_text("---\nlicense: [mit, other]\n---\n")
    assert stated_license(Path("list.md")) is None


@pytest.mark.parametrize("option", ["--license", "--tag"])
def test_what_is_neither_a_licence_nor_a_tag(
    option: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bundle", "make", "saved", "made", option, "mine\nlanguage: en"]) == 2
    told = capsys.readouterr().err
    assert ("is no licence: it is on one line" if option == "--license" else "is no tag") in told
    assert not Path("made").exists()
    wrong = option == "--license"
    assert run(["bundle", "make", "saved", "made", option, "apache2"]) == (2 if wrong else 0)
    assert ("did you mean `Apache-2.0`?" in capsys.readouterr().err) == wrong


def test_a_revision_is_what_follows_the_last_at_sign() -> None:
    found = Upstream.parse("git@example.org:owner/tiny@607a30d")
    assert found == Upstream("git@example.org:owner/tiny", "607a30d")


@pytest.mark.parametrize("source", ["owner/tiny", "owner/tiny@", "@main", "owner/tiny@a\nb"])
def test_a_source_without_a_revision(
    source: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bundle", "make", "saved", "made", "--source", source]) == 2
    assert "is not of the form NAME@REVISION" in capsys.readouterr().err
    assert not Path("made").exists()
