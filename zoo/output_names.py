"""Names of what is written that promise another thing than what they would get."""

from __future__ import annotations

from pathlib import Path

from zoo.errors import Problem, WeightsError

OTHER_FORMATS = frozenset(
    (
        *(".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".msgpack"),
        *(".h5", ".hdf5", ".keras", ".pb", ".tflite", ".onnx", ".gguf", ".ggml", ".mlmodel"),
        *(".safetensor", ".st"),
    )
)
"""What the names of weights files end with elsewhere. Any other ending is part of a folder's name,
as in `bert-base.uncased`."""


def refuse_other_format(path: Path, *, one_file: bool) -> None:
    """Refuse a name for weights that is that of a file in another format; `one_file` says whether
    they may be a file.

    Raises:
        WeightsError: it is, and no folder of that name is there.
    """
    if path.suffix.lower() not in OTHER_FORMATS or path.is_dir():
        return
    file = f"{str(path.with_suffix('.safetensors'))!r}, or " if one_file else ""
    raise WeightsError(
        Problem(
            f"{str(path)!r} would not be a {path.suffix} file: weights are written as safetensors",
            help=f"write {file}{str(path.with_suffix(''))!r}, a folder",
        )
    )


def refuse_file_name(path: Path) -> None:
    """Refuse a name for the folder of a model and what belongs to it that is that of a file.

    Raises:
        WeightsError: it is that of a weights file, and no folder of that name is there.
    """
    refuse_other_format(path, one_file=False)
    if path.suffix.lower() == ".safetensors" and not path.is_dir():
        message = f"{str(path)!r} would be a folder: with the weights comes what belongs to them"
        raise WeightsError(Problem(message, help=f"write {str(path.with_suffix(''))!r}"))
