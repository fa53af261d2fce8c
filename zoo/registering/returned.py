"""Check the values that methods of a description return: a module from `build`, a layout from
`layout`. Without the check, the caller would fail later, with an error that does not name the
plugin."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from zoo.errors import PluginError, Problem
from zoo.registering.plugin_errors import plugin_code
from zoo.wording import quoted


def checked(method: Callable[..., Any], wanted: Callable[[Any], str]) -> Callable[..., Any]:
    """Wrap a method of a description: it raises `PluginError` if it fails or returns an object of
    the wrong type.

    Args:
        method: the method that the description defines.
        wanted: maps a description to the full name of the class of which the method returns an
            instance, such as "torch.nn.Module".
    """

    @functools.wraps(method)
    def called(component: Any, *arguments: Any, **options: Any) -> Any:
        with plugin_code(f"`{method.__name__}` of {component.named()}"):
            returned = method(component, *arguments, **options)
        name = wanted(component)
        if not isinstance(returned, _class(name)):
            raise PluginError(_wrongly_returned(method, component, returned, name))
        return returned

    return called


@functools.cache
def _class(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def _wrongly_returned(
    method: Callable[..., Any], component: Any, returned: object, wanted: str
) -> Problem:
    if returned is None:
        thing = "layout" if method.__name__ == "layout" else "module"
        what, hint = "None", f"end it with `return` and the {thing}"
    elif isinstance(returned, type):
        what, hint = f"the class {quoted(returned.__name__)}", "return an instance of it"
    else:
        text, of = str(returned), f"a {type(returned).__name__}"
        what = of if "\n" in text else f"{quoted(text)}, {of}"  # such as a module of several parts
        hint = f"return an instance of {wanted}"
    code = inspect.unwrap(method).__code__
    return Problem(
        f"`{method.__name__}` of {component.named()} returned {what}, and not a {wanted}\n"
        f"  {code.co_filename}:{code.co_firstlineno}, in {method.__qualname__}",
        help=hint,
    )
