"""What the methods of a description return is held, where it is returned, to be what they promise:
`build` a module, `layout` a layout. Whoever asked for it would fail on it later, and not say whose
it was."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from zoo.errors import PluginError, Problem, quoted
from zoo.registering.plugin_errors import plugin_code


def returns_module(build: Callable[..., Any]) -> Callable[..., Any]:
    """The `build` of a description, which raises `PluginError` if it fails or returns no module of
    the class that the description's slot promises."""

    @functools.wraps(build)
    def checked(component: Any, *arguments: Any, **options: Any) -> Any:
        with plugin_code(f"`build` of {component._named()}"):
            built = build(component, *arguments, **options)
        if not isinstance(built, resolve_name(component._builds)):
            raise PluginError(wrongly_returned(build, component, built, component._builds))
        return built

    return checked


def wrongly_returned(
    method: Callable[..., Any], component: Any, returned: object, wanted: str
) -> Problem:
    """A problem that says what a method of a description returned instead of an instance of the
    class `wanted`, such as "torch.nn.Module"."""
    if returned is None:
        thing = "layout" if method.__name__ == "layout" else "module"
        what, hint = "None", f"end it with `return` and the {thing}"
    elif isinstance(returned, type):
        what, hint = f"the class {quoted(returned.__name__)}", "return an instance of it"
    else:
        what = f"{quoted(returned)}, a {type(returned).__name__}"
        hint = f"return an instance of {wanted}"
    code = inspect.unwrap(method).__code__
    return Problem(
        f"`{method.__name__}` of {component._named()} returned {what}, and not a {wanted}\n"
        f"  {code.co_filename}:{code.co_firstlineno}, in {method.__qualname__}",
        help=hint,
    )
