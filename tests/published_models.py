"""Small published models for tests, their files, and the registry that names them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import zoo

SPEC = """format = 1
name = "small"
builder = "decoder"
vocab = 11
n_layers = 1
d_model = 8
n_heads = 2
d_ff = 16
"""

LOCAL = {"kind": "local", "path": "../published"}


@cache
def weights(seed: int = 0) -> bytes:
    """Return the weights file of a small model."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        zoo.save(zoo.build(SPEC, seed=seed), path)
        return path.read_bytes()


def bundle(seed: int = 0) -> dict[str, bytes]:
    """Return the files of a small model: its weights and a card."""
    return {"model.safetensors": weights(seed), "README.md": b"# Small\n"}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def write_wheel(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write the wheel small-model 1.0 with these files, compressed."""
    about = "small_model-1.0.dist-info"
    path = folder / "small_model-1.0-py3-none-any.whl"
    written = dict(files) | {
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in written.items():
            wheel.writestr(name, content)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def entry(source: Mapping[str, object], files: Mapping[str, bytes] | None, *lines: str) -> str:
    """Return the text of a model's file: with the digests of `files`, or for trust on first use."""
    stated = ["format = 1", *lines, 'license = { weights = "CC0-1.0" }']
    if files is None:
        stated.append('trust = "first_use"')
    stated += ["[source]", *(f"{key} = {json.dumps(value)}" for key, value in source.items())]
    for path, content in (files or {}).items():
        stated += [f'[files."{path}"]', f"size = {len(content)}", f'sha256 = "{sha256(content)}"']
    return "\n".join(stated) + "\n"


def register(project: Path, name: str, text: str) -> None:
    """Write a model's file into the project's folder of models, and the registry that names it."""
    (project / "models").mkdir(exist_ok=True)
    (project / "models" / f"{name}.toml").write_text(text)
    (project / "registry.toml").write_text('format = 1\ncatalog = "models"\n')
