"""The expressions of family files: a small subset of Python's syntax with its own evaluator.

There are numbers, strings, `true`, `false` and `none`, names, arithmetic, comparisons, `and`, `or`,
`not`, `a if c else b`, lists, tables, `a | b` of two tables (the fields of both; of those that both
have, the ones of `b`), `[f(x) for x in xs if c]`, items and slices, fields of tables
(`config.rope_scaling.factor`; `none` if the field is missing), and calls of the functions that the
caller passes. No Python object can be reached, and the cost of an expression is bounded.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

MAX_SOURCE = 2_000  # characters of one expression
MAX_STEPS = 200_000  # of one evaluation: nodes it visits, and items its operations may look at
MAX_SIZE = 100_000  # items of a list, characters of a string
MAX_NUMBER = 2**63
_CHARACTERS = 64  # that an operation looks at as fast as at one item

Functions = Mapping[str, Callable[..., Any]]

_CONSTANTS = {"true": True, "false": False, "none": None}
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_ALLOWED = (
    *_OPERATORS,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Store,
    ast.BinOp,
    ast.UnaryOp,
    ast.USub,
    ast.Not,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.Compare,
    ast.IfExp,
    ast.List,
    ast.Dict,
    ast.ListComp,
    ast.comprehension,
    ast.Subscript,
    ast.Slice,
    ast.Attribute,
    ast.Call,
    ast.keyword,
)


class ExpressionError(ValueError):
    """An expression that cannot be read or has no value."""


class UnknownNameError(ExpressionError):
    """A name that is not defined."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no `{name}`")
        self.name = name


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression, and the functions that it calls."""

    source: str
    tree: ast.expr
    called: tuple[str, ...]

    def value(self, names: Mapping[str, Any], functions: Functions) -> Any:
        """Evaluate it.

        Args:
            names: the values of names; a lookup may raise `ExpressionError`.
            functions: the functions that may be called.

        Raises:
            ExpressionError: it has no value; the message names the part at fault.
        """
        try:
            return _Evaluation(self.source, names, functions).of(self.tree)
        except RecursionError:
            raise ExpressionError(f"`{self.source}` is nested too deeply") from None


def parse(source: str, functions: Functions) -> Expression:
    """Check an expression without evaluating it.

    Raises:
        ExpressionError: it is not an expression, or uses syntax that is not allowed.
    """
    expression = _parsed(source)
    for called in expression.called:
        if called not in functions:
            raise ExpressionError(
                f"there is no function `{called}`; there are: {', '.join(sorted(functions))}"
            )
    return expression


@lru_cache(maxsize=4096)  # those of a family are read anew for each configuration that is tried
def _parsed(source: str) -> Expression:
    if len(source) > MAX_SOURCE:
        raise ExpressionError(f"the expression is longer than {MAX_SOURCE:,} characters")
    tree = _tree(source)
    if tree is None:
        raise ExpressionError(f"`{source.strip()}` is no expression")
    called: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED) or not _is_simple(node):
            part = ast.get_source_segment(source.strip(), node) if hasattr(node, "lineno") else None
            raise ExpressionError(f"`{part or source.strip()}` is not allowed in an expression")
        if isinstance(node, ast.Call):
            called.append(cast("ast.Name", node.func).id)
    return Expression(source.strip(), tree, tuple(called))


def fields_in(source: str) -> frozenset[str]:
    """Return the fields of tables that an expression reads, as in `t.field` and `'field' in t`;
    none if it is no expression."""
    fields: set[str] = set()
    for node in _nodes(source):
        match node:
            case ast.Attribute(attr=field):
                fields.add(field)
            case ast.Compare(left=ast.Constant(value=str(field)), ops=[ast.In()]):
                fields.add(field)
            case _:
                pass
    return frozenset(fields)


def names_in(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names in an expression, functions too, and the keys in `config.key` and
    `get('key')`; none if it is no expression."""
    names: set[str] = set()
    keys: set[str] = set()
    for node in _nodes(source):
        match node:
            case ast.Name(id=name):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="config"), attr=key):
                keys.add(key)
            case ast.Call(func=ast.Name(id="get"), args=[ast.Constant(value=str(key)), *_]):
                keys.add(key)
            case _:
                pass
    return frozenset(names), frozenset(keys)


def strings_in(source: str) -> set[str]:
    """Return the strings in an expression; none if it is no expression."""
    constants = (node.value for node in _nodes(source) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def _nodes(source: str) -> Iterator[ast.AST]:
    tree = _tree(source)
    return iter(()) if tree is None else ast.walk(tree)


def _tree(source: str) -> ast.expr | None:
    """The syntax tree of a text; None if that is no expression."""
    try:
        return ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_simple(node: ast.AST) -> bool:
    """Return whether the contents of a node of an allowed type are allowed, too."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float, str)
    if isinstance(node, ast.ListComp):
        return len(node.generators) == 1
    if isinstance(node, ast.comprehension):
        return isinstance(node.target, ast.Name) and not node.is_async
    if isinstance(node, ast.Call):
        named = all(keyword.arg is not None for keyword in node.keywords)
        return isinstance(node.func, ast.Name) and named
    if isinstance(node, ast.Dict):
        return all(isinstance(key, ast.Constant) for key in node.keys)
    return not (isinstance(node, ast.Slice) and node.step is not None)


class _Evaluation:
    def __init__(self, source: str, names: Mapping[str, Any], functions: Functions) -> None:
        self.source = source
        self.names = names
        self.functions = functions
        self.own: dict[str, Any] = {}
        self.steps = 0

    def of(self, node: ast.expr) -> Any:
        self.spend(1)
        try:
            return _bounded(self._of(node))
        except ExpressionError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            part = ast.get_source_segment(self.source, node) or self.source
            raise ExpressionError(f"`{part}` has no value: {_reason(error)}") from None

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise ExpressionError(f"`{self.source}` takes more than {MAX_STEPS:,} steps")

    def weighed(self, value: Any) -> Any:
        """Return an operand, or the result of a function, after spending a step for each item of
        its lists and tables. A list may hold another many times, and each time counts."""
        pending = [value]
        while pending:
            inner = pending.pop()
            if isinstance(inner, str):
                self.spend(len(inner) // _CHARACTERS)
            elif isinstance(inner, list | dict):
                items = cast("list[Any] | dict[str, Any]", inner)
                self.spend(len(items))
                pending += items.values() if isinstance(items, dict) else items
        return value

    def _of(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._named(name)
            case ast.BoolOp(op=op, values=values):
                for part in values:
                    value = self.of(part)
                    if bool(value) == isinstance(op, ast.Or):
                        break
                return value
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.of(body) if self.of(test) else self.of(orelse)
            case ast.UnaryOp(op=op, operand=operand):
                value = self.of(operand)
                return not value if isinstance(op, ast.Not) else -value
            case ast.BinOp(left=left, op=op, right=right):
                return _arithmetic(op, self.weighed(self.of(left)), self.weighed(self.of(right)))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._compared(left, ops, comparators)
            case ast.List(elts=items):
                return [self.of(item) for item in items]
            case ast.Dict(keys=keys, values=values):
                return {
                    cast("ast.Constant", key).value: self.of(value)
                    for key, value in zip(keys, values, strict=True)
                }
            case ast.ListComp(elt=element, generators=[generator]):
                return self._listed(element, generator)
            case ast.Attribute(value=inner, attr=field):
                return _field(self.of(inner), field)
            case ast.Subscript(value=inner, slice=ast.Slice(lower=lower, upper=upper)):
                bounds = slice(*(None if end is None else self.of(end) for end in (lower, upper)))
                return self.weighed(self.of(inner))[bounds]
            case ast.Subscript(value=inner, slice=index):
                return self.of(inner)[self.of(index)]
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
                positional = [self.weighed(self.of(argument)) for argument in arguments]
                named = {str(word.arg): self.weighed(self.of(word.value)) for word in keywords}
                return self.weighed(self.functions[name](*positional, **named))
            case _:
                raise TypeError("not an expression")

    def _named(self, name: str) -> Any:
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in self.own:
            return self.own[name]
        try:
            return self.names[name]
        except KeyError:
            raise UnknownNameError(name) from None

    def _compared(self, left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr]) -> bool:
        first = self.weighed(self.of(left))
        for op, comparator in zip(ops, comparators, strict=True):
            second = self.weighed(self.of(comparator))
            if not _OPERATORS[type(op)](first, second):
                return False
            first = second
        return True

    def _listed(self, element: ast.expr, generator: ast.comprehension) -> list[Any]:
        variable, outer = cast("ast.Name", generator.target).id, dict(self.own)
        made: list[Any] = []
        for item in self.of(generator.iter):
            self.own[variable] = item
            if all(self.of(condition) for condition in generator.ifs):
                made.append(self.of(element))
        self.own = outer
        return made


def _arithmetic(op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(op, ast.BitOr):
        if not (isinstance(left, dict) and isinstance(right, dict)):
            raise TypeError("it is not made of tables")
    elif not isinstance(op, ast.Add) and not (_is_number(left) and _is_number(right)):
        raise TypeError("it is not made of numbers")
    if isinstance(op, ast.Pow) and abs(right) > 64:
        raise ValueError("the exponent is too large")
    return _OPERATORS[type(op)](left, right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _field(value: Any, field: str) -> Any:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"it is no table with a field `{field}`")
    return cast("Mapping[str, Any]", value).get(field)


def _bounded(value: Any) -> Any:
    if isinstance(value, list | str) and len(cast("list[Any]", value)) > MAX_SIZE:
        raise ValueError(f"it is longer than {MAX_SIZE:,}")
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise ValueError("the number is too large")
    if isinstance(value, complex):
        raise ValueError("it is the root of a negative number")
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error}"
    return str(error)
