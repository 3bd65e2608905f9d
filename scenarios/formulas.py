"""Formulas of stated traffic: "ceil(n*bits/8)" of named numbers, evaluated exactly.

A formula has numbers, names, + - * / // %, and ceil, floor, max and min. Decimals and quotients are
fractions, so that no size is rounded before it is whole.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator

from gcsim.errors import InputError
from gcsim.scenarios.reading.checking import invalid

Number = int | Fraction
Names = Mapping[str, Number]
Each = Sequence[tuple[Names, int]]  # names of equal tensors, or of a bucket, and their number
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: Fraction, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceil": math.ceil, "floor": math.floor, "max": max, "min": min,
}  # fmt: skip


@cache
def parsed(text: str | float) -> Callable[[Names], Number]:
    """Exact value of a formula for its names' values, as a function; `SyntaxError` if none."""
    return _parts(ast.parse(str(text), mode="eval").body)


def _parts(node: ast.expr) -> Callable[[Names], Number]:
    match node:
        case ast.Constant(value=int() as whole):
            return lambda _: whole
        case ast.Constant(value=float() as number):
            exact = Fraction(str(number))
            return lambda _: exact
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            apply, one, other = _OPERATORS[type(op)], _parts(left), _parts(right)
            return lambda names: apply(one(names), other(names))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            function, own = _FUNCTIONS[name], [_parts(arg) for arg in args]
            return lambda names: function(*(part(names) for part in own))
    text = ast.unparse(node)

    def named(names: Names) -> Number:
        if text not in names:
            known = ", ".join((*names, *_FUNCTIONS))
            raise InputError(f"{text!r} means nothing in a formula", hint=f"known: {known}")
        return names[text]

    return named


def evaluated(formula: str | float, each: Each) -> int:
    """Sum over the tensors, each rounded up."""
    value = parsed(formula)
    return sum(count * math.ceil(value(names)) for names, count in each)


def _formula(text: str | float) -> str | float:
    """The text, or pydantic's error where it is not a formula."""
    try:
        parsed(text)
    except SyntaxError as error:
        raise invalid(f"{text!r} is not a formula", "such as ceil(n*bits/8)") from error
    return text


Formula = Annotated[str | int | float, AfterValidator(_formula)]
