"""Functions that two processes run at once in tests of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch.distributed as dist

import zoo
from zoo.errors import Place, Problem
from zoo.training.processes import in_first_process, make_accelerator


def trained(folder: Path, output: str | Path, *, resume: bool = False) -> None:
    """Train by the recipe of a folder, in it."""
    with chdir(folder):
        zoo.train("recipe.toml", output=output, resume=resume)


def refused(folder: Path, options: Sequence[Mapping[str, Any]] = ({}, {})) -> str:
    """What training says that must fail. Each process has options of its own."""
    try:
        with chdir(folder):
            zoo.train("recipe.toml", output="out", **options[dist.get_rank()])
    except zoo.ZooError as error:
        return str(error)
    raise AssertionError("it trains")


def failures() -> list[str]:
    """What each process says of failures of the first one."""
    accelerator = make_accelerator()
    problems = [Problem("one", Place("a.txt", 3), "help"), Problem("two")]
    told: list[str] = []
    for error in (ValueError("a bug"), zoo.WeightsError(problems)):
        try:
            with in_first_process(accelerator) as is_first:
                if is_first:
                    raise error
        except Exception as caught:
            told.append(f"{type(caught).__name__} {caught}")
    return told
