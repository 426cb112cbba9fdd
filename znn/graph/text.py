"""Reading functions back from the text that they print.

The text says everything but the values of the weights, which are named: read with those of the function that was
printed, it gives that function again.
"""
import ast
import re

from znn.graph.errors import SyntaxMistake
from znn.graph.ir import Constant, Function, Let, Var, call, check
from znn.graph.operators import OPERATORS
from znn.graph.types import parse_type

NAME = r"[\w.:]+"
_HEAD = re.compile(rf"fn ({NAME})\((.*)\) -> (.*) \{{")
_DECLARED = re.compile(rf"([%@])({NAME}): (\w+\[[^\]]*\])")
_CONSTANT = re.compile(rf"const {_DECLARED.pattern}")
_LET = re.compile(rf"let {_DECLARED.pattern} = (\w+)\((.*)\)")
_RETURN = re.compile(rf"return %({NAME})")
_ARGUMENT = re.compile(rf"(?:(\w+)=)?([%@]{NAME}|\"[^\"]*\"|\([^)]*\)|[^,]+)(?:, |$)")


def parse(text, weights=None):
    """The function that prints as `text`, each line one of it.

    Parameters
    ----------
    text : str
    weights : mapping of str to ndarray, optional
        Values of the constants.

    Raises
    ------
    SyntaxMistake
        If the text is none of a function; the message has the line.
    IllTyped
        If a type does not follow.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    head = _expect(_HEAD, lines[0] if lines else "", "fn name(%x: type) -> type {")
    known = {}
    params = tuple(_declare(known, *m.groups()) for m in _DECLARED.finditer(head[2]))
    lets = []
    for line in lines[1:-2]:
        if line.startswith("const "):
            _declare(known, *_expect(_CONSTANT, line, "const @name: type").groups())
        else:
            m = _expect(_LET, line, "let %name: type = operator(operands)")
            c = _parse_call(known, m[4], m[5], line)
            lets.append(Let(_declare(known, *m.groups()[:3]), c))
    last = _expect(_RETURN, lines[-2] if len(lines) > 2 else "", "return %name")
    _expect(re.compile("}"), lines[-1], "}")
    function = check(Function(head[1], params, tuple(lets), _look_up(known, f"%{last[1]}", lines[-2]), weights or {}))
    if parse_type(head[3]) != function.result.type:
        raise SyntaxMistake(f"{lines[0]}: expected the type of what is returned, {function.result.type}: declare it")
    return function


def _expect(pattern, line, form):
    match = pattern.fullmatch(line)
    if match is None:
        raise SyntaxMistake(f"expected `{form}`, found {line!r}: correct this line")
    return match


def _declare(known, sigil, name, type_text):
    atom = (Var if sigil == "%" else Constant)(name, parse_type(type_text))
    if known.setdefault(sigil + name, atom) != atom:
        raise SyntaxMistake(f"expected {sigil}{name} to be declared once, found a second type {type_text}: rename one")
    return atom


def _look_up(known, name, line):
    if name not in known:
        raise SyntaxMistake(f"{line}: expected {name} to be declared above: declare it, or use another")
    return known[name]


def _parse_call(known, op, arguments, line):
    if op not in OPERATORS:
        raise SyntaxMistake(f"{line}: expected one of the operators {', '.join(OPERATORS)}, found {op!r}")
    args, named, at = [], {}, 0
    while at < len(arguments):
        match = _ARGUMENT.match(arguments, at)
        if match is None:
            raise SyntaxMistake(f"{line}: expected operands, then name=value, found {arguments[at:]!r}")
        value = _look_up(known, match[2], line) if match[2][0] in "%@" else _literal(match[2], line)
        if match[1]:
            named[match[1]] = value
        else:
            args.append(value)
        at = match.end()
    operator = OPERATORS[op]
    stray = [name for name in named if name not in (*operator.optional, *operator.attributes)]
    if stray or (not operator.variadic and len(args) != len(operator.operands)):
        names = ", ".join((*operator.operands, *(f"{n}=" for n in (*operator.optional, *operator.attributes))))
        raise SyntaxMistake(f"{line}: expected {op}({names}), found {', '.join(stray) or f'{len(args)} operands'}")
    return call(op, *args, **named)


def _literal(text, line):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise SyntaxMistake(f"{line}: expected a number, a tuple of numbers or a quoted word, found {text!r}") from None
