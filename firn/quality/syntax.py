"""The syntax of checks: ``temperature between -90 and 60``, ``status in ('open', 'paid') and not length(note) > 100``.

The words are those of SQL. A name that is a word of the language, or that has other characters, stands in double quotes.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import get_args

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.quality.expressions import (
    Aggregate,
    AggregateFunction,
    AllOf,
    AnyOf,
    Arithmetic,
    Call,
    Comparison,
    Constant,
    Expression,
    Function,
    IsNull,
    IsOneOf,
    Matches,
    Name,
    Not,
    Operator,
    Sign,
)

MAX_DEPTH = 32
MAX_DIGITS = 38
RESERVED = frozenset({"and", "or", "not", "between", "in", "is", "null", "true", "false", "like", "matches"})
_TOKEN = re.compile(
    r"""(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |'(?P<text>(?:[^']|'')*)'
    |"(?P<quoted>(?:[^"]|"")+)"
    |(?P<word>[^\W\d]\w*)
    |(?P<sign><=|>=|<>|!=|==|[-=<>+*/(),.])""",
    re.VERBOSE,
)
_COMPARISONS: dict[str, Operator] = {
    "=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """``number``, ``text``, ``quoted``, ``word``, ``sign``, or ``end``."""
    text: str
    position: int

    @property
    def keyword(self) -> str:
        """Return the word in lower case, or the sign; empty for other tokens."""
        return self.text.lower() if self.kind in ("word", "sign") else ""

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def parse(text: str, aggregates: list[Aggregate] | None = None) -> Expression:
    """Parse a check. Raises InvalidSpecError (BadRule) that names cause and place.

    With a list for ``aggregates``, the check is about many rows. Its aggregates are added to the list.
    """
    reader = _Reader(text, aggregates)
    expression = reader.any_of(1)
    reader.end()
    return expression


def error(text: str, position: int, problem: str, reason: Reason = Reason.BAD_RULE) -> InvalidSpecError:
    """Return the error of a check at a position, from 0."""
    shown = text if len(text) <= 100 else f"{text[:100]}..."
    return InvalidSpecError(f"check {shown!r}, character {position + 1}: {problem}", reason=reason)


class _Reader:
    def __init__(self, text: str, aggregates: list[Aggregate] | None) -> None:
        self._text = text
        self._aggregates = aggregates
        self._tokens = self._split()
        self._next = 0

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        position, text = 0, self._text
        while True:
            position += len(text[position:]) - len(text[position:].lstrip())
            if position == len(text):
                return [*tokens, _Token("end", "", position)]
            found = _TOKEN.match(text, position)
            if found is None:
                quote = text[position]
                if quote in "'\"":
                    raise error(text, position, f"the closing {quote} is missing; write it")
                raise error(text, position, f"{quote!r} is not part of the language; remove it")
            kind = found.lastgroup or ""
            tokens.append(_Token(kind, found[kind], position))
            position = found.end()

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *keywords: str) -> _Token | None:
        """Return the next token and pass it, if it is one of these words or signs."""
        token = self._token
        if token.keyword not in keywords:
            return None
        self._next += 1
        return token

    def _expect(self, keyword: str) -> _Token:
        token = self._take(keyword)
        if token is None:
            raise self._error(f"expected {keyword!r}, found {self._token}; write {keyword!r} here")
        return token

    def _error(self, problem: str) -> InvalidSpecError:
        return error(self._text, self._token.position, problem)

    def end(self) -> None:
        """Check that no token is left."""
        if self._token.kind != "end":
            raise self._error(f"did not expect {self._token}; connect conditions with and or or, or remove it")

    def any_of(self, depth: int) -> Expression:
        """Parse conditions with ``or`` between them."""
        if depth > MAX_DEPTH:
            raise self._error(f"has more than {MAX_DEPTH} levels of nesting; use several rules")
        start, found = self._token.position, [self._all_of(depth)]
        while self._take("or"):
            found.append(self._all_of(depth))
        return found[0] if len(found) == 1 else AnyOf(tuple(found), start)

    def _all_of(self, depth: int) -> Expression:
        start, found = self._token.position, [self._negated(depth)]
        while self._take("and"):
            found.append(self._negated(depth))
        return found[0] if len(found) == 1 else AllOf(tuple(found), start)

    def _negated(self, depth: int) -> Expression:
        token = self._take("not")
        if token is None:
            return self._condition(depth)
        if depth > MAX_DEPTH:
            raise self._error(f"has more than {MAX_DEPTH} levels of nesting; use several rules")
        return Not(self._negated(depth + 1), token.position)

    def _condition(self, depth: int) -> Expression:
        left = self._sum(depth)
        token = self._token
        if token.keyword in _COMPARISONS:
            self._next += 1
            return Comparison(_COMPARISONS[token.keyword], left, self._sum(depth), token.position)
        if self._take("is"):
            negated = self._take("not") is not None
            self._expect("null")
            return self._unless(negated, IsNull(left, token.position))
        negated = self._take("not") is not None
        if self._take("between"):
            low = self._sum(depth)
            self._expect("and")
            bounds = (
                Comparison(">=", left, low, token.position),
                Comparison("<=", left, self._sum(depth), token.position),
            )
            return self._unless(negated, AllOf(bounds, token.position))
        if self._take("in"):
            return self._unless(negated, IsOneOf(left, self._items(depth), token.position))
        word = self._take("like", "matches")
        if word is not None:
            return self._unless(negated, Matches(left, self._pattern(word), word.keyword == "like", token.position))
        if negated:
            raise self._error(
                f"expected between, in, like or matches, found {self._token}; write one of these after not"
            )
        return left

    def _unless(self, negated: bool, expression: Expression) -> Expression:
        return Not(expression, expression.position) if negated else expression

    def _items(self, depth: int) -> tuple[Constant, ...]:
        self._expect("(")
        items = [self._constant(depth)]
        while self._take(","):
            items.append(self._constant(depth))
        self._expect(")")
        return tuple(items)

    def _constant(self, depth: int) -> Constant:
        position = self._token.position
        value = self._sum(depth + 1)
        if not isinstance(value, Constant):
            raise error(
                self._text, position, "a list after in takes literals only; write numbers, texts, dates or times"
            )
        return value

    def _pattern(self, word: _Token) -> str:
        token = self._token
        if token.kind != "text":
            raise self._error(
                f"{word.keyword} takes a text in single quotes, found {token}; write the pattern in quotes"
            )
        self._next += 1
        return token.text.replace("''", "'")

    def _sum(self, depth: int) -> Expression:
        return self._chain(depth, ("+", "-"))

    def _chain(self, depth: int, signs: tuple[str, ...]) -> Expression:
        """Parse operands of equal rank, from left to right."""
        added = "+" in signs
        found = self._chain(depth, ("*", "/")) if added else self._operand(depth)
        while (token := self._take(*signs)) is not None:
            other = self._chain(depth, ("*", "/")) if added else self._operand(depth)
            depth += 1  # Each step is a level of the tree.
            if depth > MAX_DEPTH:
                raise self._error(f"has more than {MAX_DEPTH} levels of nesting; use several rules")
            (sign,) = (each for each in get_args(Sign) if each == token.text)
            found = Arithmetic(sign, found, other, token.position)
        return found

    def _operand(self, depth: int) -> Expression:
        token = self._token
        if self._take("-"):
            return self._negative(token, depth)
        if self._take("("):
            inner = self.any_of(depth + 1)
            self._expect(")")
            return inner
        self._next += 1
        match token.kind:
            case "number":
                return Constant(self._number(token), token.position)
            case "text":
                return Constant(token.text.replace("''", "'"), token.position)
            case "quoted":
                return self._name(token)
            case "word" if token.keyword in ("true", "false"):
                return Constant(token.keyword == "true", token.position)
            case "word" if token.keyword not in RESERVED:
                return self._time(token) or self._call(token, depth) or self._name(token)
        self._next -= 1
        if token.keyword == "null":
            raise self._error("null is not a value; write is null or is not null")
        raise self._error(
            f"expected a column or a literal, found {token}; write names that are words of the language in double quotes"
        )

    def _negative(self, minus: _Token, depth: int) -> Expression:
        token = self._token
        if token.kind == "number":
            self._next += 1
            value = self._number(token)
            # The minus of `Decimal` rounds to the digits of its context.
            negative = value.copy_negate() if isinstance(value, Decimal) else -value
            return Constant(negative, minus.position)
        if depth > MAX_DEPTH:
            raise self._error(f"has more than {MAX_DEPTH} levels of nesting; use several rules")
        return Arithmetic("-", Constant(0, minus.position), self._operand(depth + 1), minus.position)

    def _number(self, token: _Token) -> int | Decimal:
        try:
            value = Decimal(token.text)
        except InvalidOperation:  # an exponent beyond that of all decimals
            raise self._too_long(token) from None
        whole = token.text.isdigit()
        if whole and value < 2**63:
            return int(value)
        digits, exponent = len(value.as_tuple().digits), value.as_tuple().exponent
        assert isinstance(exponent, int)
        if digits > MAX_DIGITS or not -MAX_DIGITS <= exponent <= MAX_DIGITS - digits:
            raise self._too_long(token)
        return Decimal(f"{value:f}")  # without an exponent

    def _too_long(self, token: _Token) -> InvalidSpecError:
        return error(self._text, token.position, f"a number has at most {MAX_DIGITS} digits; write a smaller one")

    def _time(self, word: _Token) -> Constant | None:
        """Return ``date '...'`` or ``timestamp '...'``, None if the word is a name."""
        token = self._token
        if word.keyword not in ("date", "timestamp") or token.kind != "text":
            return None
        self._next += 1
        try:
            if word.keyword == "date":
                return Constant(date.fromisoformat(token.text), word.position)
            time = datetime.fromisoformat(token.text)
            return Constant(time if time.tzinfo is None else time.astimezone(UTC), word.position)
        except (ValueError, OverflowError):
            example = "2026-01-31" if word.keyword == "date" else "2026-01-31 12:00:00Z"
            raise error(
                self._text, token.position, f"{token.text!r} is not a {word.keyword}; write it like '{example}'"
            ) from None

    def _call(self, word: _Token, depth: int) -> Call | Name | None:
        if not self._take("("):
            return None
        if self._aggregates is not None and word.keyword in get_args(AggregateFunction):
            return self._aggregate(word, self._aggregates)
        functions = get_args(Function) if self._aggregates is None else get_args(AggregateFunction) + get_args(Function)
        if word.keyword not in functions:
            problem = f"{word.text!r} is not a function; use one of {', '.join(functions)}"
            raise error(self._text, word.position, problem)
        argument = self.any_of(depth + 1)
        self._expect(")")
        (function,) = (each for each in functions if each == word.keyword)
        return Call(function, argument, word.position)

    def _aggregate(self, word: _Token, found: list[Aggregate]) -> Name:
        (function,) = (each for each in get_args(AggregateFunction) if each == word.keyword)
        column = None
        if function != "count" or not self._take("*"):
            token = self._token
            if token.kind != "quoted" and (token.kind != "word" or token.keyword in RESERVED):
                raise self._error(f"{function} takes a column, found {token}; write the name of a column here")
            self._next += 1
            column = self._name(token)
        self._expect(")")
        aggregate = Aggregate(function, column, word.position)
        found.append(aggregate)
        return Name((str(aggregate),), word.position)

    def _name(self, first: _Token) -> Name:
        path = [self._unquoted(first)]
        while self._take("."):
            token = self._token
            if token.kind not in ("word", "quoted"):
                raise self._error(f"expected the name of a member, found {token}; write it after the dot")
            self._next += 1
            path.append(self._unquoted(token))
        return Name(tuple(path), first.position)

    def _unquoted(self, token: _Token) -> str:
        return token.text.replace('""', '"') if token.kind == "quoted" else token.text
