"""A lock refuses a model that has changed, and lists each difference."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from published_models import entry, register
from trials import Refused

import zoo
from zoo.cli import run
from zoo.errors import Place
from zoo.provenance.lock import LOCK_NAME, FileRecord, Lock, Upstream, parse_lock, read_lock
from zoo.reading import read_spec

SPEC = """
format = 1
name = "locked"
builder = "encoder"
vocab = 9
n_layers = 1
d_model = 8
n_heads = 2
d_ff = 8
ffn = "my_ffn"
"""


@pytest.fixture
def locked(project: Path) -> Path:
    """Return a project with a component of its own, a spec that names it, and a lock."""
    assert run(["init", "."]) == 0
    Path("spec.toml").write_text(SPEC)
    assert run(["lock", "spec.toml"]) == 0
    return project


def other(lock: Lock, **stated: object) -> str:
    """Return the text of a lock with another statement."""
    fields = {name: getattr(lock, name) for name in Lock.__dataclass_fields__}
    return Lock(**{**fields, **stated}).to_text()


def test_what_is_as_it_was_is_built(locked: Path) -> None:
    assert run(["build", "spec.toml", "--locked", "-o", "out"]) == 0
    assert read_lock(locked).plugins["ffn.my_ffn"].startswith("sha256:")
    assert read_lock(locked).plugins["norm.layer_norm"] == f"zoo {zoo.__version__}"


def test_a_lock_is_beside_its_spec(
    locked: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(LOCK_NAME).unlink()
    Path("below").mkdir()
    Path("spec.toml").rename("below/spec.toml")
    capsys.readouterr()
    assert run(["lock", "below/spec.toml"]) == 0
    assert capsys.readouterr().out == "below/zoo.lock\n"
    assert run(["build", "below/spec.toml", "--locked", "-o", "out"]) == 0
    Path("below/zoo.lock").rename(LOCK_NAME)
    assert "there is no lock" in refused("build", "below/spec.toml", "--locked")


def test_the_lock_of_another_spec_is_replaced_and_named(
    locked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.toml").write_text(SPEC.replace('name = "', 'name = "other_', 1))
    capsys.readouterr()
    assert run(["lock", "spec.toml"]) == 0
    assert capsys.readouterr().err == ""
    name = read_lock(locked).name
    assert run(["lock", "other.toml"]) == 0
    assert capsys.readouterr().err == f"replaced the lock of {name}\n"
    assert read_lock(locked).name == f"other_{name}"
    assert run(["lock", "spec.toml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "path": LOCK_NAME,
        "name": name,
        "spec_digest": read_spec(Path("spec.toml")).digest,
        "replaced": f"other_{name}",
    }


def test_the_lock_of_a_bundle_is_not_replaced(locked: Path, refused: Refused) -> None:
    assert run(["build", "spec.toml", "-o", "saved"]) == 0
    assert run(["bundle", "make", "saved", "bundle", "--license", "mit"]) == 0
    before = {path.name: path.read_bytes() for path in Path("bundle").iterdir()}
    told = refused("lock", "bundle/spec.toml")
    assert "bundle/zoo.lock: error: this is the lock of a bundle, which is never changed" in told
    assert "-o DIR" in told
    assert run(["lock", "bundle/spec.toml", "-o", "saved"]) == 0
    told = refused("build", "spec.toml", "-o", "bundle")
    assert "initial weights would take the place of those of a bundle" in told
    assert {path.name: path.read_bytes() for path in Path("bundle").iterdir()} == before
    Path("bundle/zoo.lock").write_text("damaged")
    assert run(["lock", "bundle/spec.toml"]) == 0


def test_a_registered_name_has_the_lock_beside_its_file(locked: Path, refused: Refused) -> None:
    registered = '[models]\nmine = "below/spec.toml"'
    Path("registry.toml").write_text(
        Path("registry.toml").read_text().replace("[models]", registered)
    )
    Path("below").mkdir()
    Path("spec.toml").rename("below/spec.toml")
    told = refused("build", "mine", "--locked", "-o", "out")
    assert "below/zoo.lock: error: there is no lock" in told
    Path(LOCK_NAME).rename("below/zoo.lock")
    assert run(["build", "mine", "--locked", "-o", "out"]) == 0


def test_a_plugin_of_a_single_layer_is_locked_too(locked: Path) -> None:
    rule = '[[decoder.layers]]\nlast = 1\nffn = { kind = "glu", d_ff = 8 }\n'
    Path("spec.toml").write_text(SPEC.replace('"encoder"', '"decoder"') + rule)
    assert run(["lock", "spec.toml"]) == 0
    assert {"ffn.my_ffn", "ffn.glu"} <= read_lock(locked).plugins.keys()


def test_another_spec_is_refused(locked: Path, refused: Refused) -> None:
    Path("spec.toml").write_text(SPEC.replace("d_ff = 8", "d_ff = 16"))
    told = refused("build", "spec.toml", "--locked", "-o", "out")
    assert "zoo.lock: error: the spec's digest is `sha256:" in told
    assert told.endswith(
        "help: restore what the lock names; or, if the change is meant, `zoo lock` writes it anew\n"
    )
    assert not Path("out").exists()
    assert run(["build", "spec.toml", "-o", "out"]) == 0


def test_another_plugin_is_refused(locked: Path, refused: Refused) -> None:
    """A plugin without a version is identified by the bytes of its file."""
    stated = {**read_lock(locked).plugins, "ffn.my_ffn": "sha256:" + "0" * 64}
    Path(LOCK_NAME).write_text(other(read_lock(locked), plugins=stated))
    told = refused("build", "spec.toml", "--locked", "-o", "out")
    assert "the plugin `ffn.my_ffn` is `sha256:" in told


def test_every_difference_is_told(locked: Path, refused: Refused) -> None:
    plugins = {k: v for k, v in read_lock(locked).plugins.items() if k != "norm.layer_norm"}
    plugins["norm.gone"] = "other 1.0"
    text = other(read_lock(locked), name="x", zoo="9.9", torch="1.0", plugins=plugins)
    Path(LOCK_NAME).write_text(text)
    told = refused("build", "spec.toml", "--locked", "-o", "out")
    assert (told.count("error:"), told.count("help:")) == (5, 1)
    for part in (
        f"the zoo's version is `{zoo.__version__}`; the lock says `9.9`",
        "the lock says `1.0`",
        "the model's name is `locked`; the lock says `x`",
        "`norm.gone` is nothing; the lock says `other 1.0`",
        f"`norm.layer_norm` is `zoo {zoo.__version__}`; the lock says nothing",
    ):
        assert part in told


def test_a_bundle_is_loaded_with_what_it_was_made_with(locked: Path, refused: Refused) -> None:
    assert run(["build", "spec.toml", "-o", "out"]) == 0
    assert run(["bundle", "make", "out", "bundle"]) == 0
    assert run(["load", "bundle", "--locked"]) == 0
    assert run(["build", "bundle/spec.toml", "--locked", "-o", "again"]) == 0
    folder = Path("bundle")
    (folder / LOCK_NAME).write_text(other(read_lock(folder), torch="1.0"))
    assert run(["load", "bundle"]) == 0
    told = refused("load", "bundle", "--locked")
    assert "torch's version is" in told
    assert told.endswith("if the change is meant, leave out `--locked`\n")


def test_without_a_lock(locked: Path, refused: Refused) -> None:
    Path(LOCK_NAME).rename("elsewhere")
    Path(LOCK_NAME).symlink_to("elsewhere")  # which could lead to any file
    assert "as a regular file" in refused("build", "spec.toml", "--locked", "-o", "out")
    Path(LOCK_NAME).unlink()
    assert "there is no lock, as" in refused("build", "spec.toml", "--locked", "-o", "out")
    assert run(["build", "spec.toml", "-o", "out"]) == 0
    assert "there is no lock, as" in refused("load", "out", "--locked")
    for path in ("absent", "spec.toml"):
        told = refused("bundle", "verify", path)
        assert told.startswith(f"{path}: error: there is no such folder\n")
        assert "help: `zoo pull NAME` prints the folder of a published model" in told
    Path("round").symlink_to("round")
    told = refused("bundle", "verify", "round")
    assert told.startswith("round/zoo.lock: error: cannot be read: ")


def test_the_name_of_a_model_is_no_file(
    project: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    register(project, "small.v1", entry({"kind": "local", "path": "."}, {"a": b""}))
    for name in ("small.v1", "vaswani-base"):
        told = refused("lock", name)
        assert f"there is no file `{name}`" in told
        assert f"`zoo show {name} --resolved > {name}.toml` writes its spec" in told
    assert run(["show", "vaswani-base", "--resolved"]) == 0
    Path("own.toml").write_text(capsys.readouterr().out)
    assert run(["lock", "own.toml"]) == 0


def test_a_lock_of_a_spec_makes_no_bundle_of_its_folder(locked: Path) -> None:
    """Weights beside a spec and its lock are loaded as from any folder."""
    assert run(["build", "spec.toml", "-o", "."]) == 0
    zoo.load(".", locked=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("format = 1", "format = 2"),
        ("format = 1", "format = true"),
        ('torch = "', 'torch = "1'),
        ("\n", "\r\n"),
        ("# Written", "# written"),
        ("\n[plugins]", "[plugins]"),
        ("format", "note = 1\nformat"),
        ("[plugins]", "plugins = 1\n[more]"),
        ("[plugins]", "[[plugins]]"),
        ('name = "locked"', 'name = "l\\u001bocked"'),
        ('name = "locked"', "name = 1979-05-27"),
        ('name = "locked"', "name = " + "[" * 5000),
        ("format", "a." * 200 + "a = 1\nformat"),
    ],
)
def test_a_lock_that_is_not_as_it_was_written(old: str, new: str, locked: Path) -> None:
    text = Path(LOCK_NAME).read_text()
    assert parse_lock(text.encode(), Place("zoo.lock")).name == "locked"
    changed = text.replace(old, new)
    assert changed != text
    with pytest.raises(zoo.WeightsError, match="the lock is damaged"):
        parse_lock(changed.encode(), Place("zoo.lock"))


@pytest.mark.parametrize(
    ("n_files", "size", "message"), [(1, -1, "a number of bytes"), (5000, 0, "longer than 262,144")]
)
def test_a_lock_of_files_that_cannot_be(
    n_files: int, size: int, message: str, locked: Path
) -> None:
    files = {str(number): FileRecord("0" * 64, size) for number in range(n_files)}
    with pytest.raises(zoo.WeightsError, match=message):
        parse_lock(other(read_lock(locked), files=files).encode(), Place("zoo.lock"))


def test_a_bundle_may_have_an_empty_file(locked: Path) -> None:
    text = other(read_lock(locked), files={"LICENSE": FileRecord("0" * 64, 0)})
    assert parse_lock(text.encode(), Place("zoo.lock")).files["LICENSE"].size == 0


def test_no_more_is_read_of_a_lock_than_a_lock_can_be_long(locked: Path) -> None:
    os.truncate(LOCK_NAME, 1 << 40)  # takes no room on the disk
    with pytest.raises(zoo.WeightsError, match="longer than 262,144"):
        read_lock(locked)


LOCKED = b"""name = "x"
zoo = "1"
torch = "2"
spec = "sha256:%s"
plugins = {}
""" % (b"0" * 64)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "zoo.lock:1:1: error: the lock is damaged: the file is empty\n"),
        (b"x = [", "zoo.lock:1:6: error: the lock is damaged: not TOML: invalid value\n"),
        (b"\xff", "the lock is damaged: 'utf-8' codec can't decode byte"),
        (b"\0" * 100, "the lock is damaged: not TOML"),
        (b"#" * (1 << 18), "zoo.lock: error: the lock is damaged: the key `format` is missing\n"),
        (b"#" * (1 << 19), "zoo.lock: error: the lock is damaged: it is longer than 262,144 b"),
        (b"format = 2\n", "zoo.lock: error: the lock is damaged: format `2` is not known\n"),
        (b"format = 1\n", "zoo.lock: error: the lock is damaged: the key `name` is missing\n"),
        (b"format = 1\nname = 1\n", "the lock is damaged: `1` is not expected there\n"),
        (b"format = 1\nweights = 1\n" + LOCKED, "the lock is damaged: it is not what was written"),
    ],
)
def test_what_is_no_lock(raw: bytes, told: str) -> None:
    with pytest.raises(zoo.WeightsError) as error:
        parse_lock(raw, Place("zoo.lock"))
    assert told in str(error.value)


ZEROS = "0" * 64
STATED: dict[str, Any] = {
    "name": "x",
    "zoo": "1",
    "torch": "2",
    "spec": f"sha256:{ZEROS}",
    "plugins": {},
    "content": f"sha256:{ZEROS}",
    "header": ZEROS,
    "source": Upstream("owner/x", "main"),
    "files": {"a": FileRecord(ZEROS, 0)},
}


def test_a_lock_is_what_was_written() -> None:
    lock = Lock(**STATED)
    assert parse_lock(lock.to_text().encode(), Place("zoo.lock")) == lock


@pytest.mark.parametrize(
    "stated",
    [
        {"spec": ZEROS},
        {"spec": f"sha256:{ZEROS}0"},
        {"plugins": {"": "zoo 1"}},
        {"content": ZEROS},
        {"header": "main"},
        {"source": Upstream("", "main")},
        {"source": Upstream("owner/x", "\n")},
        {"files": {"": FileRecord(ZEROS, 0)}},
        {"files": {"a": FileRecord(ZEROS[1:], 0)}},
        {"files": {"a": FileRecord(ZEROS, -1)}},
        {"files": {"a": FileRecord(ZEROS, 1.0)}},
    ],
    ids=str,
)
def test_a_lock_with_the_digest_of_its_text_may_still_be_none(stated: dict[str, Any]) -> None:
    raw = Lock(**{**STATED, **stated}).to_text().encode()
    with pytest.raises(zoo.WeightsError, match=r"the lock is damaged: .* (expected|bytes)"):
        parse_lock(raw, Place("zoo.lock"))
