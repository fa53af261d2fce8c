"""Refusing output names that do not match what would be written."""

from __future__ import annotations

from pathlib import Path

from zoo.errors import WeightsError
from zoo.weights.file import is_file_name
from zoo.wording import quoted

OTHER_FORMATS = frozenset(
    (
        *(".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".msgpack"),
        *(".h5", ".hdf5", ".keras", ".pb", ".tflite", ".onnx", ".gguf", ".ggml", ".mlmodel"),
        *(".safetensor", ".st"),
    )
)
"""Suffixes of weights files in other formats. Any other suffix is part of a folder's name, as in
`bert-base.uncased`."""


def check_output_name(path: Path, *, folder: bool) -> None:
    """Check that the name of an output suits what will be written there.

    Args:
        path: a file or a folder.
        folder: whether several files are written, so that the path must be a folder.

    Raises:
        WeightsError: the path has the suffix of another format and is not an existing folder, or it
            has the suffix of a weights file but must be a folder.
    """
    if folder and is_file_name(path):
        message = f"{quoted(path)} would be a folder: more than one file is written"
        raise WeightsError(message, help=f"write {quoted(path.with_suffix(''))}")
    if path.suffix.lower() not in OTHER_FORMATS or path.is_dir():
        return
    file = "" if folder else f"{quoted(path.with_suffix('.safetensors'))}, or "
    raise WeightsError(
        f"{quoted(path)} would not be a {path.suffix} file: weights are written as safetensors",
        help=f"write {file}{quoted(path.with_suffix(''))}, a folder",
    )
