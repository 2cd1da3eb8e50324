"""YAML of strangers: safe types only, no aliases (a few lines can mean gigabytes), no field twice."""

from typing import Any

import yaml

from hutch.errors import Invalid


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, stricter."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(problem="aliases (*name) are not taken")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} stands twice", node.start_mark)
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
