"""`zoo push hf://...`: files that are pushed can be pulled again, byte for byte, or the push fails.

The hub is a local server that speaks git-lfs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from breadth import one_then_slow, slow
from loopback_hub import loopback_hub, take_for_the_hub
from published_models import bundle, entry, register, write_files
from trials import Command, contents, process
from written_hub import Repository

from zoo.store.files import Store


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Repository]:
    with loopback_hub(tmp_path, monkeypatch) as hub:
        made = Repository(hub)
        hub.write = made.write
        take_for_the_hub(hub, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield made


@pytest.fixture
def model(project: Path, store: Store) -> Path:
    write_files(project / "model", {**bundle(), "1_Pooling/config.json": b"{}"})
    return project / "model"


PUSH = ["push", "model", "hf://owner/name", "--license", "CC0-1.0"]


def test_what_is_pushed_is_pulled_again(
    repository: Repository, model: Path, project: Path, store: Store, command: Command
) -> None:
    repository.cut, repository.cuts = "/lfs/", 1  # which is sent again
    pushed = process(*PUSH)
    assert pushed.returncode == 0, pushed.stderr
    (commit,) = repository.commits
    assert f'revision = "{commit}"' in pushed.stdout
    assert set(repository.hub.authorizations) == {"Bearer hf_secret", None}  # no token for git-lfs
    register(project, "small.v1", pushed.stdout)
    pulled = process("pull", "small.v1")
    assert pulled.returncode == 0, pulled.stderr
    (snapshot,) = (store.root / "snapshots").iterdir()
    assert contents(snapshot) == contents(model)
    _, verified, err = command("verify", "small.v1", "--fingerprint")
    assert "outputs within" in verified, err


def unwanted(repository: Repository) -> None:
    repository.status = 401


def forbidden(repository: Repository) -> None:
    repository.status = 403


def missing(repository: Repository) -> None:
    repository.status = 404


def hanging_up(repository: Repository) -> None:
    repository.cut = "/commit/"


def without_a_file(repository: Repository) -> None:
    repository.ignored = "README.md"


def without_a_commit(repository: Repository) -> None:
    repository.oid = "main"


BAD = [
    pytest.param(unwanted, "owner/name cannot be written: 401", id="unwanted"),
    slow(pytest.param(forbidden, "owner/name cannot be written: 403", id="forbidden")),
    slow(pytest.param(missing, "owner/name cannot be written: 404", id="missing")),
    pytest.param(hanging_up, "owner/name cannot be written: .*disconnected", id="hanging_up"),
    pytest.param(
        without_a_file, "what was written to owner/name is not there: README.md", id="file"
    ),
    pytest.param(without_a_commit, "returned no commit", id="commit"),
]


@pytest.mark.parametrize(("behave", "told"), BAD)
def test_of_a_push_that_fails_nothing_is_claimed(
    behave: Callable[[Repository], None],
    told: str,
    repository: Repository,
    model: Path,
    command: Command,
) -> None:
    behave(repository)
    status, out, err = command(*PUSH, "-o", "models/small.v1.toml")
    assert status == 2, out
    assert re.search(told, err), err
    assert "hf_secret" not in err
    assert not Path("models").exists()


@pytest.mark.parametrize("address", ["hf://", "hf://a/b/c", "hf://a b/c", "hf://.."])
def test_what_names_no_repository(address: str, model: Path, refused: Callable[..., str]) -> None:
    told = refused("push", "model", address, "--license", "CC0-1.0")
    assert f"`{address[5:]}` is the name of no repository of the hub" in told
    assert "write `hf://owner/name`" in told


@pytest.mark.parametrize("revision", ["main", "0123456789" * 4])
def test_a_push_to_a_revision(revision: str, model: Path, refused: Callable[..., str]) -> None:
    told = refused("push", "model", f"hf://owner/name@{revision}", "--license", "CC0-1.0")
    assert f"a push makes a commit of its own, and `@{revision}` names one that is there" in told
    assert "write `hf://owner/name`" in told


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_read_a_repository_is_told_to_log_in(
    status: int, repository: Repository, project: Path, store: Store, command: Command
) -> None:
    source = {"kind": "hf", "repo": "owner/name", "revision": "0123456789" * 4}
    register(project, "small.v1", entry(source, bundle()))
    repository.hub.status = status
    failed, _, err = command("pull", "small.v1")
    assert failed == 2
    assert f"cannot be downloaded: {status} " in err
    assert "help: `hf auth login`, or HF_TOKEN, with a token that may do so" in err
    assert "hf_secret" not in err


@pytest.mark.parametrize("token", one_then_slow(["hf_tökén", "hf_秘密", "hf_a b"]))
def test_what_is_no_token_is_told_and_not_sent(
    token: str,
    repository: Repository,
    project: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    source = {"kind": "hf", "repo": "owner/name", "revision": "0123456789" * 4}
    register(project, "small.v1", entry(source, bundle()))
    for arguments in (["pull", "small.v1"], ["import", "hf://owner/name"]):
        status, _, err = command(*arguments)
        assert status == 2
        assert "the token for the Hugging Face hub has a character that no token" in err
        assert token not in err
    assert repository.hub.requests == []


def test_a_hub_that_cannot_be_reached(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is its plugin to blame."""
    monkeypatch.setenv("HF_ENDPOINT", "https://127.0.0.1:1")
    pulled = process("pull", "gpt2-large.openai", "--trust-first-use")
    assert pulled.returncode == 2
    told = "cannot be read from the hub: https://127.0.0.1:1 cannot be reached: .*refused"
    assert re.search(f"gpt2-large {told}", pulled.stderr)
    assert "help: `HF_ENDPOINT` names a mirror of the hub" in pulled.stderr
    assert "plugin" not in pulled.stderr
