"""YAML of strangers: safe types only, no aliases (a few lines can mean gigabytes), no field twice."""

from typing import Any

import yaml

from hutch.errors import Invalid

MOST_DEPTH = 30


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, stricter."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.depth > MOST_DEPTH:  # its scanner needs a square of the depth in time
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
                raise yaml.constructor.ConstructorError(problem=f"{name!r} stands twice, or is no name")
            seen.add(name)
        return super().construct_mapping(node, deep)


# Dates stay text: nobody who writes `version: 2024-01-01` means an object, and JSON has none.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str) -> object:
    """Plain data, or Invalid that says where."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        told = " ".join(str(error).split())
        raise Invalid(f"the front matter is not valid YAML: {told}", details={"field": "front matter"}) from error
    except (RecursionError, ValueError, TypeError) as error:
        raise Invalid("the front matter is nested too deeply or holds values that cannot be read") from error


def quoted(text: str) -> str:
    """Text as one YAML value on one line, whatever is in it."""
    return yaml.safe_dump(text, width=1 << 30, allow_unicode=True, default_style='"').strip()


def with_text(source: str, field: str, text: str) -> str:
    """The same YAML with another text as the value of one field at the top; not a character else is changed."""
    top = yaml.compose(source, Loader=_Loader)
    for name, value in top.value if isinstance(top, yaml.MappingNode) else ():
        if name.value == field:
            # A block (`|`, `>`) ends behind its line break, which the fields after it still need.
            end = value.end_mark.index
            after = source[end:]
            line = "\r\n" if "\r\n" in source else "\n"
            gap = "" if not after or after.startswith(("\n", "\r", " ", "#")) else line
            return source[: value.start_mark.index] + quoted(text) + gap + after
    raise Invalid(f"the front matter has no field {field}")
