"""Extract the docstrings of pydantic fields: the strings below the fields in the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def field_docs(cls: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each field of a component's description or of a recipe's table,
    including inherited fields; empty if the source is not available."""
    found: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        if issubclass(parent, BaseModel) and parent is not BaseModel:
            found |= _own_docs(parent)
    return found


def class_doc(cls: type[BaseModel]) -> str:
    """Return the own docstring of a class, not an inherited one."""
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
