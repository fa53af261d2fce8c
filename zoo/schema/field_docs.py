"""What a class of pydantic says of its fields: the string below each of them in the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def field_docs(cls: type[BaseModel]) -> dict[str, str]:
    """The docstring of each field of a component's description or of a recipe's table, its parents'
    included; where the source is not at hand there are none."""
    found: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        if issubclass(parent, BaseModel) and parent is not BaseModel:
            found |= _own_docs(parent)
    return found


def class_doc(cls: type[BaseModel]) -> str:
    """The docstring of a class, without those of its parents."""
    return inspect.cleandoc(cls.__doc__ or "")


@cache
def _own_docs(cls: type[BaseModel]) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    statements = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for field, below in pairwise(statements):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = inspect.cleandoc(below.value.value)
    return found
