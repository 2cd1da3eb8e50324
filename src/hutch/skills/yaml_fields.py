"""Parsing untrusted YAML: safe types only, no aliases (a few lines can expand to gigabytes), no duplicate fields."""

from typing import Any

import yaml

from hutch.errors import Invalid

MAX_DEPTH = 30


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with more restrictions."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.depth > MAX_DEPTH:  # the scanner's time grows with the square of the depth
            raise yaml.composer.ComposerError(problem="it is nested too deeply")
        self.depth += 1
        try:
            return self._composed(parent, index)
        finally:
            self.depth -= 1

    def _composed(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(problem="aliases (*name) are not taken")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[object] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, list | dict | set) or name in seen:
                raise yaml.constructor.ConstructorError(problem=f"{name!r} is given twice, or is not a name")
            seen.add(name)
        return super().construct_mapping(node, deep)


# Dates stay text: `version: 2024-01-01` is not meant as a date, and JSON has none.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str) -> object:
    """Return plain data. Raises Invalid with the position."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        message = " ".join(str(error).split())
        raise Invalid(f"the front matter is not valid YAML: {message}", details={"field": "front matter"}) from error
    except (RecursionError, ValueError, TypeError) as error:
        raise Invalid("the front matter is nested too deeply or holds values that cannot be read") from error


def quoted(text: str) -> str:
    """Quote any text as one YAML value on one line."""
    return yaml.safe_dump(text, width=1 << 30, allow_unicode=True, default_style='"').strip()


def replace_text(source: str, field: str, text: str) -> str:
    """Replace the text of one top-level field; every other character stays."""
    top = yaml.compose(source, Loader=_Loader)
    for name, value in top.value if isinstance(top, yaml.MappingNode) else ():
        if name.value == field:
            # A block (`|`, `>`) ends after its line break, which the fields after it still need.
            end = value.end_mark.index
            after = source[end:]
            line = "\r\n" if "\r\n" in source else "\n"
            gap = "" if not after or after.startswith(("\n", "\r", " ", "#")) else line
            return source[: value.start_mark.index] + quoted(text) + gap + after
    raise Invalid(f"the front matter has no field {field}")
