"""What several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from zoo.registry import Registry

Layers = Callable[[], "Registry"]
"""What `pass_obj` hands to a command: loads the registries, when the command needs them."""

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
dtype_choice = click.Choice(["float32", "float64", "float16", "bfloat16"])
