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


def checked(
    method: Callable[..., Any], wanted: str, is_wanted: Callable[[object], bool]
) -> Callable[..., Any]:
    """A method of a description, which raises `PluginError` if it fails or returns something else.

    Args:
        method: as the description defines it.
        wanted: what it returns, for a message, such as "an nn.Module".
        is_wanted: whether something is that.
    """

    @functools.wraps(method)
    def called(component: Any, *arguments: Any, **options: Any) -> Any:
        with plugin_code(f"`{method.__name__}` of {component._named()}"):
            returned = method(component, *arguments, **options)
        if not is_wanted(returned):
            raise PluginError(_wrongly_returned(method, component, returned, wanted))
        return returned

    return called


def is_module(value: object) -> bool:
    """Whether something is an `nn.Module`; imports torch."""
    from torch import nn

    return isinstance(value, nn.Module)


def _wrongly_returned(
    method: Callable[..., Any], component: Any, returned: object, wanted: str
) -> Problem:
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
