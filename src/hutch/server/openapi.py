"""The OpenAPI document: the route table, told in the words that tools and other languages read.

Nothing is written here twice: operations come from `ROUTES` and `SOCKETS`, schemas from the records, sentences from
docstrings, error statuses from `STATUS`.
"""

import inspect
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

import hutch
from hutch.errors import HutchError
from hutch.keeper.keys import Role
from hutch.model.ids import NAME
from hutch.server.error_status import OF_BODIES, OF_BOXES, OF_EVERYTHING, OF_FILES, STATUS
from hutch.server.field_docs import notes
from hutch.server.handlers.websockets import SOCKETS, SocketRoute
from hutch.server.http.headers import OF_BOX_ROUTES, OF_EVERY_ROUTE, REQUEST_HEADERS
from hutch.server.request import BYTES, JSON
from hutch.server.routes import ROUTES, May, Route
from hutch.server.wire import Error

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_TEXT = "text/plain"
_WHAT = {
    "box": ("The id of a box.", "^[a-z0-9]{20}$"),
    "job": ("The id of a job of this box.", "^[a-zA-Z0-9_-]{1,64}$"),
    "operation": ("The name that Hutch-Operation gave.", "^[a-zA-Z0-9]{1,64}$"),
    "key": ("The id of a key, never the key itself.", "^k[0-9a-f]{12}$"),
    "volume": ("The name of a volume.", f"^{NAME.pattern}$"),
    "skill": ("The name of a skill.", "^[a-z0-9]+(-[a-z0-9]+)*$"),
    "question": ("The id of a question that waits.", "^[0-9a-f]{16}$"),
    "image": ("The digest of an image, or the beginning of it.", "^sha256:[0-9a-f]{8,64}$"),
    "name": ("The name of an MCP server.", "^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,39}$"),
    "mcp_server": ("The name of an MCP server.", "^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,39}$"),
    "group": ("The name of a group of skills.", f"^{NAME.pattern}$"),
}
"""Variables of paths."""
_OUR_NUMBERS = re.compile(r" \((?:lesson |[BPS])\d+(?:, (?:lesson |[BPS])?\d+)*\)")
_REASONS = {
    200: "Done.", 201: "Made.", 202: "Begun: it is being made.", 204: "Done; there is nothing to tell.",
    206: "The part that was asked for.", 503: "Not now.",
}  # fmt: skip


@cache
def encoded() -> bytes:
    """As it is served. Made once."""
    return msgspec.json.encode(_for_strangers(_document()))


def document() -> Json:
    """The document as plain JSON values: defaults that are tuples here are lists there."""
    plain: Json = msgspec.json.decode(encoded())
    return plain


def _document() -> Json:
    paths: dict[str, Json] = {}
    schemas = Schemas(_kinds())
    failures: dict[str, Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, failures)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hutch",
            "version": hutch.__version__,
            "summary": "Isolated boxes for AI agents.",
            "description": "Bodies are JSON unless said otherwise; what is not known is refused by name. Files' paths "
            "are relative to the box's workdir. Another owner's box is 404, as one that never was.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}],
        "tags": [{"name": tag, "description": text} for tag, text in _tags().items()],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": dict(sorted(failures.items())),
            "parameters": {name: {"name": name, "in": "header", **told} for name, told in REQUEST_HEADERS.items()},
            "headers": {
                "Hutch-Request": {"description": "The log's lines carry it as `op`.", "schema": {"type": "string"}},
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
    """One schema for each record, under its name."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._kinds = list(dict.fromkeys(kinds))
        found, self.components = msgspec.json.schema_components(self._kinds, ref_template=_REF)
        self._of = dict(zip(self._kinds, found, strict=True))
        for kind in _structs(self._kinds):
            properties = self.components.get(kind.__name__, {}).get("properties", {})
            for name, note in notes(kind).items():
                if name in properties:
                    properties[name] = {**properties[name], "description": note}

    def of(self, kind: type) -> Json:
        """A reference, or a plain schema for what has no name."""
        schema: Json = self._of[kind]
        return schema

    def fields(self, kind: type) -> Iterable[tuple[str, Json, bool]]:
        """Name, schema and whether it must be given."""
        schema = self.components[kind.__name__]
        for name, each in schema["properties"].items():
            yield name, each, name in schema.get("required", ())


def codes_of(route: Route) -> frozenset[str]:
    """Every error code that a route may answer with."""
    if route.may is May.ANYBODY:
        return frozenset({"invalid", "quota", "internal"})
    codes = {*OF_EVERYTHING, *route.fails}
    if "{" in route.path:
        codes.add("not_found")
    if route.body is not None or route.raw:
        codes.update(OF_BODIES)
    if "{box}" in route.path:
        codes.update(OF_BOXES)
    if "files" in route.parts:
        codes.update(OF_FILES)
    return frozenset(codes)


def good_statuses(route: Route) -> tuple[int, ...]:
    return route.status or ((200,) if route.reply or route.streams else (204,))


def summary(described: object) -> str:
    """The first paragraph of a docstring."""
    told = inspect.getdoc(described)
    return " ".join(told.split("\n\n")[0].split()) if told else ""


def allowed_roles(may: May) -> list[str]:
    return [str(role) for role in Role if may.allows(role)]


def _for_strangers(told: Any) -> Any:
    """Without the numbers by which our own lists call a requirement."""
    if isinstance(told, str):
        return _OUR_NUMBERS.sub("", told)
    if isinstance(told, dict):
        return {name: _for_strangers(each) for name, each in told.items()}
    return [_for_strangers(each) for each in told] if isinstance(told, list) else told


def _kinds() -> Iterable[type]:
    yield Error
    for route in ROUTES:
        kinds = (route.query, route.form or route.body, route.reply, *route.streams.values())
        yield from (kind for kind in kinds if kind is not None)
    for each in SOCKETS.values():
        yield each.query


def _structs(kinds: Iterable[type]) -> set[type]:
    """Every record that these are made of."""
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
    return {_last_name(module.__name__): summary(module) for module in modules if module is not None}


def _last_name(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def _operation(route: Route, schemas: Schemas, failures: dict[str, Json]) -> Json:
    tag = _last_name(route.handler.__module__)
    told: Json = {
        "operationId": f"{tag}_{route.handler.__name__}",
        "tags": [tag],
        "x-hutch-may": str(route.may),
        "x-hutch-roles": allowed_roles(route.may),
        "parameters": list(_parameters(route, schemas)),
        "responses": {**_good(route, schemas), **_bad(route, schemas, failures)},
    }
    if text := summary(route.handler):
        told["summary"] = text
    if route.may is May.ANYBODY:
        told["security"] = []
    if route.raw:
        told["requestBody"] = {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}
    elif route.body is not None:
        kind = route.form or route.body
        required = any(needed for _, _, needed in schemas.fields(kind))
        told["requestBody"] = {"required": required, "content": {JSON: {"schema": schemas.of(kind)}}}
    return told


def _parameters(route: Route, schemas: Schemas) -> Iterable[Json]:
    yield from _path_parameters(route.path)
    if route.query is not None:
        yield from _query_parameters(route.query, schemas)
    if route.may is not May.ANYBODY:
        of_boxes = OF_BOX_ROUTES if "{box}" in route.path else ()
        for header in (*route.headers, *of_boxes, *OF_EVERY_ROUTE):
            yield {"$ref": f"#/components/parameters/{header}"}


def _path_parameters(path: str) -> Iterable[Json]:
    for part in path.split("/"):
        if part.startswith("{"):
            name = part[1:-1]
            description, pattern = _WHAT[name]
            schema = {"type": "string", "pattern": pattern}
            yield {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _query_parameters(kind: type, schemas: Schemas) -> Iterable[Json]:
    for name, schema, needed in schemas.fields(kind):
        described = {"description": schema["description"]} if "description" in schema else {}
        yield {"name": name, "in": "query", "required": needed, **described, "schema": _as_text(schema)}


def _as_text(schema: Json) -> Json:
    """A query string has no null: what may be left out is left out."""
    plain = {name: value for name, value in schema.items() if name != "description"}
    kinds = [each for each in plain.get("anyOf", ()) if each != {"type": "null"}]
    if len(kinds) != 1:
        return plain
    del plain["anyOf"]
    if plain.get("default", "") is None:
        del plain["default"]
    return {**kinds[0], **plain}


def _good(route: Route, schemas: Schemas) -> Json:
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
        answers[str(status)] = {"description": _REASONS[status], "headers": _answer_headers()}
        if content and status != 204:
            answers[str(status)]["content"] = content
    return answers


def _bad(route: Route, schemas: Schemas, failures: dict[str, Json]) -> Json:
    """References: most routes fail alike, so each way to fail stands once, in `failures`."""
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes_of(route), key=lambda code: (STATUS[code], code)):
        by_status.setdefault(STATUS[code], []).append(code)
    answers: Json = {}
    for status, codes in by_status.items():
        if status in good_statuses(route):
            continue
        headers = _answer_headers("Retry-After") if _may_pass(codes) else _answer_headers()
        name = "-".join((str(status), *codes))
        answers[str(status)] = {"$ref": f"#/components/responses/{name}"}
        failures[name] = {
            "description": " ".join(f"`{code}`: {_meaning(code)}" for code in codes),
            "headers": headers,
            "content": {JSON: {"schema": schemas.of(Error)}},
            "x-hutch-codes": codes,
        }
    if "Range" in route.headers:
        answers["416"] = {"description": "The part lies behind the end of the file.", "headers": _answer_headers()}
    return answers


def _answer_headers(*more: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("Hutch-Request", *more)}


def _may_pass(codes: Iterable[str]) -> bool:
    return any(HutchError.by_code[code].retryable for code in codes if code in HutchError.by_code)


def _meaning(code: str) -> str:
    kind = HutchError.by_code.get(code)
    if kind is None:
        return "a defect of the server; its log tells more."
    own = kind.__dict__.get("__doc__")
    return " ".join(own.split()) if own else f"{code.replace('_', ' ')}."


def _socket(path: str, each: SocketRoute, schemas: Schemas) -> Json:
    return {
        "summary": summary(each.talk),
        "x-hutch-may": str(May.CHANGE),
        "x-hutch-roles": allowed_roles(May.CHANGE),
        "parameters": [*_path_parameters(path), *_query_parameters(each.query, schemas)],
    }
