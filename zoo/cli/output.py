"""Printing of a command's report, as text or as JSON for other programs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import click

from zoo.wording import printable_lines


def print_text(text: str, *, err: bool = False) -> None:
    """Print a text that names files or values of others, which command no terminal."""
    click.echo(printable_lines(text), err=err)


def print_json(data: Any, *, one_of_several: bool = False) -> None:
    """Print data as indented JSON, or as one line of JSON if it is one of several. JSON has no NaN
    and no infinity: they are null, as JavaScript writes them."""
    import json

    indent = None if one_of_several else 2
    try:
        text = json.dumps(data, indent=indent, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(data), indent=indent)
    sys.stdout.write(f"{text}\n")


def _finite(data: Any) -> Any:
    """Data with None in the place of each number that is not finite."""
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in cast("Mapping[str, Any]", data).items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in cast("list[Any]", data)]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def print_report(
    as_json: bool, data: Any, text: Callable[[Any], str], *, one_of_several: bool = False
) -> None:
    """Print a report: with `as_json` as `print_json`, otherwise as the text that `text` returns. It
    is sent at once: who reads it in a pipe may wait for it before it asks for the next one."""
    if as_json:
        print_json(data, one_of_several=one_of_several)
    else:
        sys.stdout.write(text(data) + "\n")
    sys.stdout.flush()
