"""The OpenAPI document, generated from the route table.

Operations come from `ROUTES` and `SOCKETS`, schemas from the records, descriptions from docstrings (also those under a
record's fields), error statuses from `STATUS`; nothing is written twice.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

import msgspec

import hutch
from hutch.errors import HutchError
from hutch.keeper.keys import Role
from hutch.model.ids import NAME
from hutch.server.error_status import BODY_ERRORS, BOX_ERRORS, COMMON_ERRORS, FILE_ERRORS, STATUS
from hutch.server.handlers.websockets import SOCKETS, SocketRoute
from hutch.server.http.headers import BOX_HEADERS, COMMON_HEADERS, REQUEST_HEADERS
from hutch.server.request import BYTES, JSON
from hutch.server.routes import ROUTES, May, Route
from hutch.server.wire import Error
from hutch.tools.schemas import typed_enum

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_TEXT = "text/plain"
_PATH_VARIABLES = {
    "box": ("The id of a box.", "^[a-z0-9]{20}$"),
    "job": ("The id of a job of this box.", "^[a-zA-Z0-9_-]{1,64}$"),
    "checkpoint": ("The id or name of a checkpoint of this box.", f"^{NAME.pattern}$"),
    "port": ("A TCP port inside the box.", "^[1-9][0-9]{0,4}$"),
    "preview": ("The id of a preview of this box.", "^p[0-9a-f]{16}$"),
    "operation": ("The name given in Hutch-Operation.", "^[a-zA-Z0-9]{1,64}$"),
    "key": ("The id of a key, never the key itself.", "^k[0-9a-f]{12}$"),
    "volume": ("The name of a volume.", f"^{NAME.pattern}$"),
    "skill": ("The name of a skill.", "^[a-z0-9]+(-[a-z0-9]+)*$"),
    "question": ("The id of an open question.", "^[0-9a-f]{16}$"),
    "image": ("The digest of an image, or its beginning.", "^sha256:[0-9a-f]{8,64}$"),
    "name": ("The name of an MCP server.", "^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,39}$"),
    "kernel": ("The id of a kernel of this box.", "^[a-zA-Z0-9_-]{1,80}$"),
    "mcp_server": ("The name of an MCP server.", "^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,39}$"),
    "group": ("The name of a group of skills.", f"^{NAME.pattern}$"),
}
"""Description and pattern of each path variable."""
_REQUIREMENT_NUMBERS = re.compile(r" \((?:lesson |[BPS])\d+(?:, (?:lesson |[BPS])?\d+)*\)")
_STATUS_DESCRIPTIONS = {
    200: "Done.", 201: "Created.", 202: "Accepted: it is being created.", 204: "Done; there is no body.",
    206: "The requested part.", 503: "Not ready.",
}  # fmt: skip


@cache
def encoded() -> bytes:
    """The document as the server sends it; it is generated once."""
    return msgspec.json.encode(_without_requirement_numbers(_document()))


def document() -> Json:
    """The document as plain JSON values: defaults that are tuples here are lists there."""
    plain: Json = msgspec.json.decode(encoded())
    return plain


def _document() -> Json:
    paths: dict[str, Json] = {}
    schemas = Schemas(_described_types())
    failures: dict[str, Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, failures)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hutch",
            "version": hutch.__version__,
            "summary": "Isolated boxes for AI agents.",
            "description": "Bodies are JSON unless stated otherwise; unknown fields are refused by name. Paths "
            "of files are relative to the box's workdir. Another owner's box is 404, like a box that never existed.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}],
        "tags": [{"name": tag, "description": text} for tag, text in _tags().items()],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": dict(sorted(failures.items())),
            "parameters": {name: {"name": name, "in": "header", **header} for name, header in REQUEST_HEADERS.items()},
            "headers": {
                "Hutch-Request": {
                    "description": "The id of the request, `op` in the log.",
                    "schema": {"type": "string"},
                },
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}},
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer KEY`"},
                "key": {"type": "apiKey", "in": "header", "name": "Hutch-Key"},
            },
        },
        "x-websockets": {path: _socket(path, each, schemas) for path, each in SOCKETS.items()},
    }


class Schemas:
    """The schemas of all records, by the name of the record."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._kinds = list(dict.fromkeys(kinds))
        found, self.components = msgspec.json.schema_components(self._kinds, ref_template=_REF)
        self.components = {name: _with_enum_types(each) for name, each in self.components.items()}
        self._of = {kind: _with_enum_types(each) for kind, each in zip(self._kinds, found, strict=True)}
        for kind in _all_records(self._kinds):
            properties = self.components.get(kind.__name__, {}).get("properties", {})
            for name, note in field_docs(kind).items():
                if name in properties:
                    properties[name] = {**properties[name], "description": note}

    def of(self, kind: type) -> Json:
        """A reference to a record's schema, or the schema itself of a type without a name."""
        schema: Json = self._of[kind]
        return schema

    def fields(self, kind: type) -> Iterable[tuple[str, Json, bool]]:
        """Each field's name and schema, and whether it is required."""
        schema = self.components[kind.__name__]
        for name, each in schema["properties"].items():
            yield name, each, name in schema.get("required", ())


def _with_enum_types(schema: Any) -> Any:
    """Give every enum of texts its type, which msgspec leaves out."""
    if isinstance(schema, list):
        return [_with_enum_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return typed_enum({name: _with_enum_types(each) for name, each in schema.items()})


def codes_of(route: Route) -> frozenset[str]:
    """Every error code that a route may answer with."""
    if route.may is May.ANYBODY:
        return frozenset({"invalid", "quota", "internal"})
    codes = {*COMMON_ERRORS, *route.fails}
    if "{" in route.path:
        codes.add("not_found")
    if route.body is not None or route.raw:
        codes.update(BODY_ERRORS)
    if "{box}" in route.path:
        codes.update(BOX_ERRORS)
    if "files" in route.parts:
        codes.update(FILE_ERRORS)
    return frozenset(codes)


def good_statuses(route: Route) -> tuple[int, ...]:
    return route.status or ((200,) if route.reply or route.streams else (204,))


def summary(described: object) -> str:
    """The first paragraph of a docstring."""
    text = inspect.getdoc(described)
    return " ".join(text.split("\n\n")[0].split()) if text else ""


def allowed_roles(may: May) -> list[str]:
    return [str(role) for role in Role if may.allows(role)]


def _without_requirement_numbers(value: Any) -> Any:
    """The same document without references such as `(B14)`, which mean nothing to an API user."""
    if isinstance(value, str):
        return _REQUIREMENT_NUMBERS.sub("", value)
    if isinstance(value, dict):
        return {name: _without_requirement_numbers(each) for name, each in value.items()}
    return [_without_requirement_numbers(each) for each in value] if isinstance(value, list) else value


def _described_types() -> Iterable[type]:
    yield Error
    for route in ROUTES:
        kinds = (route.query, route.form or route.body, route.reply, *route.streams.values())
        yield from (kind for kind in kinds if kind is not None)
    for each in SOCKETS.values():
        yield each.query


def _all_records(kinds: Iterable[type]) -> set[type]:
    """Every record that these types contain."""
    found: set[type] = set()

    def visit(info: Any) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in found:
                return
            found.add(info.cls)
            for field in info.fields:
                visit(field.type)
            return
        for name in ("item_type", "value_type", "type"):
            if (inner := getattr(info, name, None)) is not None:
                visit(inner)
        for several in ("types", "item_types"):
            for inner in getattr(info, several, ()):
                visit(inner)

    for kind in kinds:
        visit(msgspec.inspect.type_info(kind))
    return found


def _tags() -> dict[str, str]:
    modules = dict.fromkeys(inspect.getmodule(route.handler) for route in ROUTES)
    return {_tag(module): summary(module) for module in modules if module is not None}


def _tag(module: ModuleType) -> str:
    """The name of the handlers' module, or the one under which it was published before it was renamed."""
    name: str = getattr(module, "OPENAPI_TAG", module.__name__.rpartition(".")[2])
    return name


def _operation(route: Route, schemas: Schemas, failures: dict[str, Json]) -> Json:
    tag = _tag(sys.modules[route.handler.__module__])
    operation: Json = {
        "operationId": f"{tag}_{route.handler.__name__}",
        "tags": [tag],
        "x-hutch-may": str(route.may),
        "x-hutch-roles": allowed_roles(route.may),
        "parameters": list(_parameters(route, schemas)),
        "responses": {**_success_responses(route, schemas), **_error_responses(route, schemas, failures)},
    }
    if text := summary(route.handler):
        operation["summary"] = text
    if route.may is May.ANYBODY:
        operation["security"] = []
    if route.raw:
        operation["requestBody"] = {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}
    elif route.body is not None:
        kind = route.form or route.body
        required = any(needed for _, _, needed in schemas.fields(kind))
        operation["requestBody"] = {"required": required, "content": {JSON: {"schema": schemas.of(kind)}}}
    return operation


def _parameters(route: Route, schemas: Schemas) -> Iterable[Json]:
    yield from _path_parameters(route.path)
    if route.query is not None:
        yield from _query_parameters(route.query, schemas)
    if route.may is not May.ANYBODY:
        of_boxes = BOX_HEADERS if "{box}" in route.path else ()
        for header in (*route.headers, *of_boxes, *COMMON_HEADERS):
            yield {"$ref": f"#/components/parameters/{header}"}


def _path_parameters(path: str) -> Iterable[Json]:
    for part in path.split("/"):
        if part.startswith("{"):
            name = part[1:-1]
            description, pattern = _PATH_VARIABLES[name]
            schema = {"type": "string", "pattern": pattern}
            yield {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _query_parameters(kind: type, schemas: Schemas) -> Iterable[Json]:
    for name, schema, needed in schemas.fields(kind):
        described = {"description": schema["description"]} if "description" in schema else {}
        yield {"name": name, "in": "query", "required": needed, **described, "schema": _query_schema(schema)}


def _query_schema(schema: Json) -> Json:
    """The schema without null, which a query string cannot express: an optional parameter is left out."""
    plain = {name: value for name, value in schema.items() if name != "description"}
    kinds = [each for each in plain.get("anyOf", ()) if each != {"type": "null"}]
    if len(kinds) != 1:
        return plain
    del plain["anyOf"]
    if plain.get("default", "") is None:
        del plain["default"]
    return {**kinds[0], **plain}


def _success_responses(route: Route, schemas: Schemas) -> Json:
    content: Json = {}
    if route.reply is str:
        content[_TEXT] = {"schema": {"type": "string"}}
    elif route.reply is bytes:
        content[BYTES] = {"schema": {"type": "string", "format": "binary"}}
    elif route.reply is not None:
        content[JSON] = {"schema": schemas.of(route.reply)}
    for media, kind in route.streams.items():
        content[media] = {"schema": {"type": "string", "format": "binary"}}
        if kind is not bytes:
            content[media] = {"schema": {"type": "string"}, "x-each": schemas.of(kind)}
    answers: Json = {}
    for status in good_statuses(route):
        answers[str(status)] = {"description": _STATUS_DESCRIPTIONS[status], "headers": _response_headers()}
        if content and status != 204:
            answers[str(status)]["content"] = content
    return answers


def _error_responses(route: Route, schemas: Schemas, failures: dict[str, Json]) -> Json:
    """References into `failures`: most routes fail alike, so each response is described once."""
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes_of(route), key=lambda code: (STATUS[code], code)):
        by_status.setdefault(STATUS[code], []).append(code)
    answers: Json = {}
    for status, codes in by_status.items():
        if status in good_statuses(route):
            continue
        headers = _response_headers("Retry-After") if _any_retryable(codes) else _response_headers()
        name = "-".join((str(status), *codes))
        answers[str(status)] = {"$ref": f"#/components/responses/{name}"}
        failures[name] = {
            "description": " ".join(f"`{code}`: {_meaning(code)}" for code in codes),
            "headers": headers,
            "content": {JSON: {"schema": schemas.of(Error)}},
            "x-hutch-codes": codes,
        }
    if "Range" in route.headers:
        answers["416"] = {"description": "The range begins after the end of the file.", "headers": _response_headers()}
    return answers


def _response_headers(*more: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("Hutch-Request", *more)}


def _any_retryable(codes: Iterable[str]) -> bool:
    return any(HutchError.by_code[code].retryable for code in codes if code in HutchError.by_code)


def _meaning(code: str) -> str:
    kind = HutchError.by_code.get(code)
    if kind is None:
        return "a defect of the server; its log has the details."
    own = kind.__dict__.get("__doc__")
    return " ".join(own.split()) if own else f"{code.replace('_', ' ')}."


def _socket(path: str, each: SocketRoute, schemas: Schemas) -> Json:
    return {
        "summary": summary(each.handler),
        "x-hutch-may": str(May.CHANGE),
        "x-hutch-roles": allowed_roles(May.CHANGE),
        "parameters": [*_path_parameters(path), *_query_parameters(each.query, schemas)],
    }


# --- docstrings of fields -------------------------------------------------------------------------------------------


@cache
def field_docs(kind: type) -> dict[str, str]:
    """The docstring under each field of a record and its bases.

    A record that was built at run time names its sources in `__documented_in__`.
    """
    found: dict[str, str] = {}
    for base in (*getattr(kind, "__documented_in__", ()), *reversed(kind.__mro__)):
        if base.__module__.startswith("hutch."):
            found |= _own_field_docs(base)
    return found


def _own_field_docs(kind: type) -> dict[str, str]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # The record was built at run time, or installed without its source.
        return {}
    definition = ast.parse(textwrap.dedent(source)).body[0]
    if not isinstance(definition, ast.ClassDef):
        return {}
    found: dict[str, str] = {}
    for before, after in zip(definition.body, definition.body[1:], strict=False):
        named = isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
        if not named or not isinstance(after, ast.Expr) or not isinstance(after.value, ast.Constant):
            continue
        if isinstance(after.value.value, str):
            found[before.target.id] = inspect.cleandoc(after.value.value).replace("\n", " ")  # type: ignore[attr-defined]
    return found
