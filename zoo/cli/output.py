"""Printing of a command's report, as text or as JSON for other programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from zoo.wording import printable_lines


def print_text(text: str, *, err: bool = False) -> None:
    """Print a text that names files or values of others, which command no terminal."""
    click.echo(printable_lines(text), err=err)


def print_json(data: Any, *, one_of_several: bool = False) -> None:
    """Print data as indented JSON, or as one line of JSON if it is one of several."""
    import json

    sys.stdout.write(json.dumps(data, indent=None if one_of_several else 2) + "\n")


def print_report(
    as_json: bool, data: Any, text: Callable[[Any], str], *, one_of_several: bool = False
) -> None:
    """Print a report: with `as_json` as `print_json`, otherwise as the text that `text` returns."""
    if as_json:
        print_json(data, one_of_several=one_of_several)
    else:
        sys.stdout.write(text(data) + "\n")
