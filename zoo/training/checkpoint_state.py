"""The checkpoints in the folder of a run, and what each says of the run: its step, its log, and
which run it is. Imports no torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from zoo.errors import TrainingError
from zoo.wording import quoted

STATE = "state.json"
"""The file of a checkpoint that says where the run was."""
_NAME = re.compile(r"step-\d{8,}")
UNREADABLE = "without its folder, `--resume` goes on from the one before, or begins anew"
"""What helps where a checkpoint cannot be read."""


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first."""
    found = (path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written, by its name."""
    return int(checkpoint.name.removeprefix("step-"))


def checkpoint_of(folder: Path, step: int) -> Path:
    """The checkpoint of a step, whether or not there is one."""
    return folder / f"step-{step:08}"


class _Record(BaseModel):
    """One line of the log; further values are numbers too."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, float]

    step: int
    loss: float
    learning_rate: float
    tokens_per_second: float


class _State(BaseModel):
    """What tells where a run was. Whether `run` is this one, is seen when they are compared."""

    model_config = ConfigDict(strict=True)

    step: int
    unreached: list[str] = []
    """The trained weights that the loss has not reached, of which there is no optimiser state."""
    run: Any
    history: Annotated[list[_Record], Field(min_length=1)]
    best: _Record | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.history[-1].step != self.step or self.best not in (None, *self.history):
            raise ValueError
        return self


def read_state(path: Path) -> dict[str, Any]:
    """Read the `state` of a checkpoint, its `step`, and the names of its weights that are
    `unreached`. Raises `TrainingError`."""
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_text())
        step = _State.model_validate(state).step
    except OSError as error:
        reason = error.strerror or str(error)
    except ValidationError:  # a ValueError too
        reason = f"its {STATE} does not say where the run was"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    else:
        if path == checkpoint_of(path.parent, step):
            return state
        reason = f"its {STATE} is of step {step:,}"
    raise TrainingError(f"the checkpoint {quoted(path)} cannot be read: {reason}", help=UNREADABLE)
