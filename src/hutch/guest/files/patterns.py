"""Glob patterns: `**` for any depth, `*`, `?`, `[...]`, `{a,b}`; only a pattern with a leading dot matches hidden
names.

A pattern is compiled to lists of components, and a walk carries the set of positions it has reached in them, so that
each directory is visited once however many alternatives there are.
"""

import re
from typing import NamedTuple

from hutch.guest.operations import Failure

MAX_ALTERNATIVES = 256
MAX_PATTERN = 1024

ANY_DEPTH = "**"


class Wild(NamedTuple):
    """A component with wildcards."""

    matches: re.Pattern[str]
    hidden: bool
    """Whether it begins with a dot and so may match hidden names."""

    def accepts(self, name: str) -> bool:
        return (self.hidden or not name.startswith(".")) and self.matches.fullmatch(name) is not None


Component = str | Wild
"""`ANY_DEPTH`, a literal name, or a component with wildcards."""
State = tuple[int, int]
"""The index of an alternative, and of its next component."""


class Pattern:
    """One glob pattern with all its alternatives."""

    def __init__(self, pattern: str) -> None:
        if not pattern or "\0" in pattern or len(pattern) > MAX_PATTERN:
            raise Failure("invalid", f"the pattern must have 1 to {MAX_PATTERN} characters and no NUL byte")
        self.absolute = pattern.startswith("/")
        self._alternatives: list[tuple[list[Component], bool]] = []
        for alternative in expand(pattern):
            if alternative.startswith("/") != self.absolute:
                raise Failure("invalid", f"{pattern!r} has both absolute and relative alternatives")
            names = [name for name in alternative.split("/") if name and name != "."]
            if names:
                self._alternatives.append((_compile(names), alternative.endswith("/")))
        if not self._alternatives:
            raise Failure("invalid", f"{pattern!r} names no file")

    def start(self) -> frozenset[State]:
        return self._closed({(index, 0) for index in range(len(self._alternatives))})

    def literals(self, states: frozenset[State]) -> set[str]:
        """Return names that can be looked up without reading the directory."""
        components = (self._component(state) for state in states)
        return {component for component in components if isinstance(component, str) and component != ANY_DEPTH}

    def wild(self, states: frozenset[State]) -> bool:
        """Return whether the directory must be read."""
        return any(not isinstance(part := self._component(state), str) or part == ANY_DEPTH for state in states)

    def after(self, states: frozenset[State], name: str, real_directory: bool) -> tuple[bool, bool, frozenset[State]]:
        """Return whether an entry matches, whether it matches if it is a directory, and the positions below it."""
        matched = matched_directory = False
        following: set[State] = set()
        for state in states:
            component = self._component(state)
            if component == ANY_DEPTH:
                if name.startswith("."):
                    continue
                last = self._is_last(state)
                matched |= last and not self._alternatives[state[0]][1]
                matched_directory |= last and self._alternatives[state[0]][1]
                if real_directory:  # through a symlink the walk could loop for ever
                    following.add(state)
            elif component == name if isinstance(component, str) else component.accepts(name):
                if self._is_last(state):
                    matched |= not self._alternatives[state[0]][1]
                    matched_directory |= self._alternatives[state[0]][1]
                else:
                    following.add((state[0], state[1] + 1))
        return matched, matched_directory, self._closed(following)

    def matches(self, path: str) -> bool:
        """Return whether a relative path of a file matches, without looking at the disk."""
        states = self.start()
        *above, last = path.split("/")
        for name in above:
            states = self.after(states, name, True)[2]
        return self.after(states, last, False)[0]

    def _component(self, state: State) -> Component:
        return self._alternatives[state[0]][0][state[1]]

    def _is_last(self, state: State) -> bool:
        return state[1] == len(self._alternatives[state[0]][0]) - 1

    def _closed(self, states: set[State]) -> frozenset[State]:
        """Add the positions after `**`, which also matches no directory at all."""
        closed = set(states)
        for index, position in states:
            components = self._alternatives[index][0]
            while components[position] == ANY_DEPTH and position + 1 < len(components):
                position += 1
                closed.add((index, position))
        return frozenset(closed)


def _compile(names: list[str]) -> list[Component]:
    components: list[Component] = []
    for name in names:
        if name == ANY_DEPTH:
            if not components or components[-1] != ANY_DEPTH:
                components.append(ANY_DEPTH)
            continue
        literal, expression = translate(name)
        components.append(Wild(re.compile(expression, re.DOTALL), name[0] == ".") if literal is None else literal)
    return components


def translate(name: str) -> tuple[str | None, str]:
    """Return the literal name if it has no wildcard (else None), and a regular expression for it."""
    literal: list[str] = []
    parts: list[str] = []
    wild = False
    position = 0
    while position < len(name):
        character = name[position]
        position += 1
        if character == "*":
            wild = True
            if not parts or parts[-1] != "*":
                parts.append("*")
        elif character == "?":
            wild = True
            parts.append(".")
        elif character == "[" and (end := _class_end(name, position)) > 0:
            wild = True
            parts.append(_class(name[position:end]))
            position = end + 1
        else:
            if character == "\\" and position < len(name):
                character = name[position]
                position += 1
            literal.append(character)
            parts.append(re.escape(character))
    return None if wild else "".join(literal), _join(parts)


def _join(parts: list[str]) -> str:
    """Join the parts. Each `*` is an atomic group that matches as little as possible, so backtracking is bounded."""
    pieces: list[str] = []
    current: list[str] = []
    for part in parts:
        if part == "*":
            pieces.append("".join(current))
            current = []
        else:
            current.append(part)
    if not pieces:
        return "".join(current)
    first, middle = pieces[0], pieces[1:]
    return first + "".join(f"(?>.*?{piece})" for piece in middle) + ".*" + "".join(current)


def _class_end(name: str, position: int) -> int:
    """Return the position of the closing bracket of the class that begins at `position`; -1 if it has none."""
    start = position
    if name[position : position + 1] in ("!", "^"):
        start += 1
    return name.find("]", start + 1)


def _class(body: str) -> str:
    negated = body[0] in "!^"
    body = body[1:] if negated else body
    ranges: list[str] = []
    position = 0
    while position < len(body):
        first = last = body[position]
        if body[position + 1 : position + 2] == "-" and position + 2 < len(body):
            last = body[position + 2]
            position += 2
        position += 1
        if first <= last:
            ranges.append(f"{re.escape(first)}-{re.escape(last)}")
    if not ranges:
        return "." if negated else "(?!)"
    return f"[{'^' if negated else ''}{''.join(ranges)}]"


def expand(pattern: str) -> list[str]:
    """Return the alternatives of a pattern with braces; `{a}` and unbalanced braces are literal."""
    done: list[str] = []
    pending = [("", pattern)]
    while pending:
        head, rest = pending.pop()
        found = _first_braces(rest)
        if found is None:
            done.append(head + rest)
        else:
            begin, choices, end = found
            pending += [(head + rest[:begin], choice + rest[end:]) for choice in reversed(choices)]
        if len(done) + len(pending) > MAX_ALTERNATIVES:
            raise Failure("invalid", f"the braces of {pattern[:200]!r} give more than {MAX_ALTERNATIVES} patterns")
    return done


def _first_braces(text: str) -> tuple[int, list[str], int] | None:
    """Return begin, choices and end of the first pair of braces that has a comma of its own."""
    begin = -1
    while (begin := _find_open(text, begin + 1)) >= 0:
        depth, start, choices = 0, begin + 1, []
        position = begin
        while position < len(text):
            character = text[position]
            if character == "\\":
                position += 1
            elif character == "{":
                depth += 1
            elif character == "," and depth == 1:
                choices.append(text[start:position])
                start = position + 1
            elif character == "}":
                depth -= 1
                if depth == 0:
                    break
            position += 1
        if depth == 0 and choices:
            return begin, [*choices, text[start:position]], position + 1
    return None


def _find_open(text: str, position: int) -> int:
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == "{":
            return position
        position += 1
    return -1
