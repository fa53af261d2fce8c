"""What the methods of a description return is held, where it is returned, to be what they promise:
`build` a module, `layout` a layout. Whoever asked for it would fail on it later, and not say whose
it was."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from zoo.errors import PluginError, Problem, quoted
from zoo.registering.plugin_errors import plugin_code


def returns_module(build: Callable[..., Any]) -> Callable[..., Any]:
    """The `build` of a description, which raises `PluginError` if it fails or returns no
    `nn.Module`."""

    @functools.wraps(build)
    def checked(component: Any, *arguments: Any, **options: Any) -> Any:
        with plugin_code(f"`build` of {component._named()}"):
            built = build(component, *arguments, **options)
        from torch import nn

        if not isinstance(built, nn.Module):
            raise PluginError(wrongly_returned(build, component, built, "an nn.Module"))
        return built

    return checked


def wrongly_returned(
    method: Callable[..., Any], component: Any, returned: object, wanted: str
) -> Problem:
    """A problem that says what a method of a description returned, which is not `wanted`, such as
    "an nn.Module"."""
    wanted_class = wanted.split()[-1]
    if returned is None:
        thing = wanted_class.rpartition(".")[2].lower()
        what, hint = "None", f"end it with `return` and the {thing}"
    elif isinstance(returned, type):
        what, hint = f"the class {quoted(returned.__name__)}", "return an instance of it"
    else:
        what = f"{quoted(returned)}, a {type(returned).__name__}"
        hint = f"return an instance of {wanted_class}"
    code = inspect.unwrap(method).__code__
    return Problem(
        f"`{method.__name__}` of {component._named()} returned {what}, and not {wanted}\n"
        f"  {code.co_filename}:{code.co_firstlineno}, in {method.__qualname__}",
        help=hint,
    )
