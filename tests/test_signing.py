"""Signatures of bundles, with keys that are generated here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from trials import Refused

import zoo
from zoo.bundle import read_bundle
from zoo.cli import run

SPEC = """
format = 1
name = "signed"
builder = "encoder"
vocab = 9
n_layers = 1
d_model = 8
n_heads = 2
d_ff = 8
"""


def make_key(name: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    Path(f"{name}.key").write_bytes(private)
    Path(f"{name}.pem").write_bytes(public)


@pytest.fixture
def bundle(project: Path) -> Path:
    Path("spec.toml").write_text(SPEC)
    assert run(["build", "spec.toml", "-o", "out"]) == 0
    Path("out/1_Pooling").mkdir()
    Path("out/1_Pooling/config.json").write_text("{}")
    assert run(["bundle", "make", "out", "bundle"]) == 0
    make_key("mine")
    return Path("bundle")


@pytest.fixture
def signed(bundle: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    capsys.readouterr()
    assert run(["bundle", "sign", "bundle", "--key", "mine.key", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": "bundle/model.sig"}
    return bundle


def test_a_signature_is_checked_with_its_key(
    signed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["bundle", "verify", "bundle", "--key", "mine.pem"]) == 0
    assert "signature: checked" in capsys.readouterr().out
    assert run(["bundle", "verify", "bundle"]) == 0
    assert "signature: not checked" in capsys.readouterr().out
    assert read_bundle(signed).is_signed
    zoo.load(signed)


def test_a_signature_is_replaced_by_that_of_another_key(signed: Path, refused: Refused) -> None:
    make_key("other")
    assert run(["bundle", "sign", "bundle", "--key", "other.key"]) == 0
    assert run(["bundle", "verify", "bundle", "--key", "other.pem"]) == 0
    told = refused("bundle", "verify", "bundle", "--key", "mine.pem")
    assert "the signature is not that of the key over these files" in told


def test_another_program_checks_it_too(signed: Path) -> None:
    """The command line of model-signing."""
    command = [sys.executable, "-m", "model_signing", "verify", "key", "bundle"]
    options = ["--signature", "bundle/model.sig", "--public_key", "mine.pem"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_key_is_refused(signed: Path, refused: Refused) -> None:
    make_key("other")
    told = refused("bundle", "verify", "bundle", "--key", "other.pem")
    assert "the signature is not that of the key over these files" in told
    assert "help: ask who signed it for the public key" in told


@pytest.mark.parametrize("changed", ["the weights", "a module"])
def test_a_bundle_that_was_made_anew_is_refused(
    changed: str, signed: Path, refused: Refused
) -> None:
    """Its lock is valid, but the signature is that of another lock."""
    if changed == "a module":
        Path("out/1_Pooling/config.json").write_text("[]")
    else:
        Path("spec.toml").write_text(SPEC.replace("d_ff = 8", "d_ff = 12"))
        assert run(["build", "spec.toml", "-o", "out"]) == 0
    assert run(["bundle", "make", "out", "other"]) == 0
    Path("other/model.sig").write_bytes(Path("bundle/model.sig").read_bytes())
    assert run(["bundle", "verify", "other"]) == 0
    assert "is not that of the key" in refused("bundle", "verify", "other", "--key", "mine.pem")


@pytest.mark.parametrize("name", [".git", ".gitignore", ".gitattributes"])
def test_files_of_git_are_refused(name: str, signed: Path, refused: Refused) -> None:
    (signed / name).write_text("")
    told = refused("bundle", "verify", "bundle", "--key", "mine.pem")
    assert f"{name}: error: not listed in zoo.lock" in told


def test_without_a_signature(bundle: Path, refused: Refused) -> None:
    told = refused("bundle", "verify", "bundle", "--key", "mine.pem")
    assert "there is no signature" in told
    assert "help: `zoo bundle sign` makes one" in told


def test_without_the_library(
    bundle: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    assert refused("bundle", "sign", "bundle", "--key", "mine.key") == (
        "error: signing needs the package `model_signing`, which is not installed\n"
        "      = help: pip install 'zoo[sign]'\n"
    )


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b"\xff", b'{"a": 1}'])
def test_what_is_no_signature(content: bytes, signed: Path, refused: Refused) -> None:
    (signed / "model.sig").write_bytes(content)
    told = refused("bundle", "verify", "bundle", "--key", "mine.pem")
    assert "is not that of the key" in told


def test_a_signature_that_is_too_long_to_be_read(signed: Path, refused: Refused) -> None:
    """Spaces at its end would leave it valid."""
    with (signed / "model.sig").open("a") as file:
        file.write(" " * (1 << 22))
    told = refused("bundle", "verify", "bundle", "--key", "mine.pem")
    assert "model.sig: error: " in told


def test_keys_that_are_none(signed: Path, refused: Refused) -> None:
    Path("bad.pem").write_text("-----BEGIN PUBLIC KEY-----\n")
    for command in (["verify", "bundle"], ["sign", "bundle"]):
        told = refused("bundle", *command, "--key", "absent.pem")
        assert "absent.pem: error: there is no such key" in told
        before = (signed / "model.sig").read_bytes()
        assert "error:" in refused("bundle", *command, "--key", "bad.pem")
        assert (signed / "model.sig").read_bytes() == before


def test_a_key_of_another_kind_is_told_as_the_keys_fault(signed: Path, refused: Refused) -> None:
    told = refused("bundle", "verify", "bundle", "--key", "mine.key")
    assert told.startswith("mine.key: error: the key cannot be used: ")
    assert "help: it is the public key, on an elliptic curve, in PEM" in told
    private = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    Path("rsa.key").write_bytes(private)
    for key, reason in (("rsa.key", "\n"), ("mine.pem", ": ")):
        told = refused("bundle", "sign", "bundle", "--key", key)
        assert told.startswith(f"{key}: error: the key cannot be used{reason}")
        assert "help: it is a private key on an elliptic curve, in PEM, without a password" in told


def test_a_damaged_bundle_is_not_signed(bundle: Path, refused: Refused) -> None:
    (bundle / "spec.toml").write_text(SPEC)
    assert "bundle/spec.toml" in refused("bundle", "sign", "bundle", "--key", "mine.key")
    assert not (bundle / "model.sig").exists()
