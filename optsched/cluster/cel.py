"""An evaluator for the subset of CEL that device selectors commonly use.

The subset has literals, `device.driver`, `device.attributes["d"].name`,
`device.capacity["d"].name`, the operators `! && || == != < <= > >= in`, lists and `has(…)`. The
string methods are `startsWith`, `endsWith` and `contains`; the methods of `quantity("…")` are
`compareTo`, `isGreaterThan` and `isLessThan`. If an expression uses any other feature, compiling it
raises `Unsupported`, which names the feature. If the evaluation on a device fails, for example
because the device lacks an attribute, `CelError` is raised. The semantics are those of the package
cel in `k8s.io/dynamic-resource-allocation`.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

from optsched.units import Quantity, QuantityError, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_CHARACTERS = 10 * 1024
"""Maximum length of an expression, as in the API server (`CELSelectorExpressionMaxLength`)."""
MOST_PARTS = 2000
"""Maximum number of tokens in an expression, which bounds the evaluation time on a device."""
_DEEPEST = 50

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?[0-9]+)(?![\w.])"
    r"|(?P<text>\"[^\"\\\n]*\"|'[^'\\\n]*')"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|\|\||[=!<>]=|[!<>()\[\],.]))"
)
_DIGITS = 20
_INT64 = (-(2**63), 2**63 - 1)
_LEFT = re.compile(r"\s*(\S{1,20})?")

Value: TypeAlias = "bool | int | str | Quantity | Mapping[str, Value] | tuple[Value, ...]"


class Unsupported(ValueError):
    """Raised if an expression uses a CEL feature that this module does not support."""


class CelError(ValueError):
    """Raised if the evaluation of an expression on a device fails."""


class Domains(dict[str, "Value"]):
    """Maps a domain, such as `gpu.nvidia.com`, to a device's attributes or capacities there."""

    def __missing__(self, key: str) -> Value:
        return {}


@dataclass(frozen=True, slots=True)
class CelDevice:
    """The properties of a device that expressions can read.

    `capacity` holds quantities.
    """

    driver: str
    attributes: Domains
    capacity: Domains


Term: TypeAlias = "Callable[[CelDevice], Value]"


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled expression that selects devices.

    `cost` is the number of tokens in the expression; the evaluation on one device takes at most
    that many steps.
    """

    text: str
    term: Term
    cost: int

    def selects(self, device: CelDevice) -> bool:
        """Return whether the expression selects a device; raises CelError if evaluation fails."""
        return _truth(self.term(device))


def compile_selector(text: str) -> Selector:
    """Return the compiled selector; raises Unsupported if the expression is not supported."""
    if len(text) > MOST_CHARACTERS:
        raise Unsupported(f"is longer than {MOST_CHARACTERS} characters")
    found = _compiled(text)
    if isinstance(found, str):
        raise Unsupported(found)
    return found


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Selector | str:
    """Return the compiled selector, or the reason why the expression is not supported."""
    try:
        tokens = _tokens(text)
        return Selector(text, _Parser(tokens).parse_expression(), len(tokens))
    except Unsupported as e:
        return str(e)


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            rest = _LEFT.match(text, at)
            raise Unsupported(f"uses {rest[1] if rest else '?'}, which is not supported")
        kind = str(match.lastgroup)
        found.append((kind, match[kind]))
        if len(found) > MOST_PARTS:
            raise Unsupported(f"has more than {MOST_PARTS} tokens")
        at = match.end()
    return found


class _Parser:
    """A recursive descent parser for CEL, with one method per level of operator precedence."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def parse_expression(self) -> Term:
        term = self._disjunction()
        if self._at < len(self._tokens):
            raise self._syntax_error()
        return term

    # --- tokens ----------------------------------------------------------------------------------

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "its end")

    def _accept(self, *signs: str) -> str:
        kind, text = self._peek()
        if text in signs and kind in ("sign", "name"):
            self._at += 1
            return text
        return ""

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            raise self._syntax_error()

    def _read_name(self) -> str:
        kind, text = self._peek()
        if kind != "name":
            raise self._syntax_error()
        self._at += 1
        return text

    def _syntax_error(self) -> Unsupported:
        return Unsupported(f"uses {self._peek()[1]} in a way that is not supported")

    # --- operators -------------------------------------------------------------------------------

    def _disjunction(self) -> Term:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unsupported("is nested too deeply")
        terms = [self._conjunction()]
        while self._accept("||"):
            terms.append(self._conjunction())
        self._depth -= 1
        return terms[0] if len(terms) == 1 else lambda d: _any_is_true(terms, d)

    def _conjunction(self) -> Term:
        terms = [self._comparison()]
        while self._accept("&&"):
            terms.append(self._comparison())
        return (
            terms[0]
            if len(terms) == 1
            else lambda d: not _any_is_true([_negate(t) for t in terms], d)
        )

    def _comparison(self) -> Term:
        left = self._negation()
        sign = self._accept("==", "!=", "<=", ">=", "<", ">", "in")
        if not sign:
            return left
        right, compare = self._negation(), _COMPARE[sign]
        return lambda d: compare(left(d), right(d))

    def _negation(self) -> Term:
        count = 0
        while self._accept("!"):
            count += 1
        term = self._member()
        if not count:
            return term
        return _negate(term) if count % 2 else _negate(_negate(term))

    # --- values ----------------------------------------------------------------------------------

    def _member(self) -> Term:
        term = self._atom()
        while sign := self._accept(".", "["):
            if sign == "[":
                term = partial(_element, term, self._disjunction())
                self._expect("]")
            else:
                term = self._selected(term, self._read_name())
        return term

    def _selected(self, term: Term, name: str) -> Term:
        if not self._accept("("):
            return partial(_element, term, lambda _: name)
        if name not in _METHODS:
            raise Unsupported(f"uses {name}(), which is not supported")
        argument, method = self._disjunction(), _METHODS[name]
        self._expect(")")
        return lambda d: method(term(d), argument(d))

    def _atom(self) -> Term:
        kind, text = self._peek()
        self._at += 1
        if kind == "number":
            if len(text) > _DIGITS or not _INT64[0] <= (number := int(text)) <= _INT64[1]:
                raise Unsupported("has a number that does not fit in 64 bits")
            return lambda _: number
        if kind == "text":
            return lambda _: text[1:-1]
        if text == "(":
            inner = self._disjunction()
            self._expect(")")
            return inner
        if text == "[":
            items: list[Term] = []
            while not self._accept("]"):
                items.append(self._disjunction())
                if self._peek()[1] != "]":
                    self._expect(",")
            return lambda d: tuple(item(d) for item in items)
        if kind == "name":
            return self._named(text)
        self._at -= 1
        raise self._syntax_error()

    def _named(self, name: str) -> Term:
        if name in _CONSTANTS:
            return lambda _: _CONSTANTS[name]
        if name == "device":
            self._expect(".")
            part = self._read_name()
            if part == "driver":
                return lambda d: d.driver
            if part == "attributes":
                return lambda d: d.attributes
            if part == "capacity":
                return lambda d: d.capacity
            raise Unsupported(f"uses device.{part}, which is not supported")
        if name in ("quantity", "has") and self._accept("("):
            inner = self._disjunction()
            self._expect(")")
            return partial(_quantity if name == "quantity" else _key_exists, inner)
        raise Unsupported(f"uses {name}, which is not supported")


# --- meaning -------------------------------------------------------------------------------------

_CONSTANTS = {"true": True, "false": False}


def _truth(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    raise CelError("is neither true nor false")


def _negate(term: Term) -> Term:
    return lambda d: not _truth(term(d))


def _any_is_true(terms: list[Term], device: CelDevice) -> bool:
    """Return whether any term is true (CEL `||`); an error is raised only if no term is true."""
    failed: CelError | None = None
    for term in terms:
        try:
            if _truth(term(device)):
                return True
        except CelError as e:
            failed = failed or e
    if failed is not None:
        raise failed
    return False


def _element(term: Term, key: Term, device: CelDevice) -> Value:
    holder, name = term(device), key(device)
    if isinstance(holder, dict) and isinstance(name, str):
        try:
            found: Value = holder[name]
        except KeyError as e:
            raise CelError(f"no such key: {name}") from e
        return found
    raise CelError(f"has no element {name}")


def _key_exists(term: Term, device: CelDevice) -> Value:
    try:
        term(device)
    except CelError:
        return False
    return True


def _quantity(term: Term, device: CelDevice) -> Value:
    text = term(device)
    try:
        return parse_quantity(text if isinstance(text, str) else "")
    except QuantityError as e:
        raise CelError(f"{text} is not a quantity") from e


def _is_equal(a: Value, b: Value) -> bool:
    return type(a) is type(b) and a == b


def _order(a: Value, b: Value) -> int:
    for kind in (str, Quantity):
        if isinstance(a, kind) and isinstance(b, kind):
            return (a > b) - (a < b)  # type: ignore[operator]  # both have the same ordered type
    if type(a) is int and type(b) is int:
        return (a > b) - (a < b)
    raise CelError("compares values that cannot be ordered")


def _contains_value(a: Value, b: Value) -> bool:
    if isinstance(b, dict) and isinstance(a, str):
        return a in b
    if isinstance(b, tuple):
        return any(_is_equal(each, a) for each in b)
    raise CelError("applies `in` to a value that is neither a list nor a map")


_COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "==": _is_equal,
    "!=": lambda a, b: not _is_equal(a, b),
    "<": lambda a, b: _order(a, b) < 0,
    "<=": lambda a, b: _order(a, b) <= 0,
    ">": lambda a, b: _order(a, b) > 0,
    ">=": lambda a, b: _order(a, b) >= 0,
    "in": _contains_value,
}


def _call_on_strings(method: Callable[[str, str], bool], a: Value, b: Value) -> bool:
    if isinstance(a, str) and isinstance(b, str):
        return method(a, b)
    raise CelError("calls a string method on values that are not strings")


_METHODS: dict[str, Callable[[Value, Value], Value]] = {
    "startsWith": partial(_call_on_strings, str.startswith),
    "endsWith": partial(_call_on_strings, str.endswith),
    "contains": partial(_call_on_strings, operator.contains),
    "compareTo": _order,
    "isGreaterThan": lambda a, b: _order(a, b) > 0,
    "isLessThan": lambda a, b: _order(a, b) < 0,
}
