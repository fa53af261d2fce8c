"""What `build` of a description returns is held to be a module, where it is returned. Whoever asked
for it would fail on it later, and not say whose it was."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from zoo.errors import PluginError, Problem, quoted


def returns_module(build: Callable[..., Any]) -> Callable[..., Any]:
    """The `build` of a description, which raises `PluginError` if it returns no `nn.Module`."""

    @functools.wraps(build)
    def checked(component: Any, *arguments: Any, **options: Any) -> Any:
        built = build(component, *arguments, **options)
        from torch import nn

        if not isinstance(built, nn.Module):
            raise PluginError(_no_module(build, component, built))
        return built

    return checked


def _no_module(build: Callable[..., Any], component: Any, built: object) -> Problem:
    if built is None:
        what, hint = "None", "end it with `return` and the module"
    elif isinstance(built, type):
        what, hint = f"the class {quoted(built.__name__)}", "return an instance of it"
    else:
        what, hint = f"{quoted(built)}, a {type(built).__name__}", "return an instance of nn.Module"
    code = inspect.unwrap(build).__code__
    return Problem(
        f"`build` of {component._named()} returned {what}, and not an nn.Module\n"
        f"  {code.co_filename}:{code.co_firstlineno}, in {build.__qualname__}",
        help=hint,
    )
