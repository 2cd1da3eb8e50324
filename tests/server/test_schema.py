"""Generated requests against the described API: no server error, and no answer that the document does not describe."""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import checks
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.generation.modes import GenerationMode

from hutch.keeper.keys import Role
from hutch.server.routes import ROUTES, Route
from tests import proofs
from tests.images import registry_server
from tests.server.serving import TIMEOUT_SECONDS, Server, serving
from tests.server.world import World

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
ENDLESS = ("text/event-stream", "application/x-ndjson")
PER_ROUND = 12
NOWHERE = "https://127.0.0.1:9/none"
"""The URL of every repository in a request, so that no request leaves this machine."""
OBSTACLES = {"Hutch-Session", "Hutch-Admin", "Hutch-Epoch", "Hutch-Observe", "Range"}
"""Headers whose generated values make most requests fail early."""


@dataclass
class Findings:
    """The outcome of one role's requests."""

    role: Role
    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    reached: set[str] = field(default_factory=set)
    """Operations that succeeded at least once."""
    wrong: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> set[str]:
        return {route.op for route in ROUTES if route.may.allows(self.role)}

    @property
    def share(self) -> float:
        return len(self.reached & self.allowed) / len(self.allowed)


class RoleClient:
    """Sends generated requests as one role."""

    def __init__(self, server: Server, role: Role, registry: registry_server.Server) -> None:
        owner = f"team-{role}"
        self._key = server.key(role, owner)
        self._url = server.announcement["url"]
        self._world = World(server, owner, registry)
        self._no_image = f"{registry.address}/none"
        self._chance = random.Random(4)
        self._session = requests.Session()
        self._session.trust_env = False
        self.found = Findings(role)
        self._operations = operations(server.tcp(self._key).call("GET", "/v1/openapi.json").body)

    def send_cases(self, wanted: int) -> Findings:
        """Send cases of every operation in turn, until that many were sent and no operation was left out."""
        few = max(2, min(PER_ROUND, wanted // (2 * len(ROUTES))))
        for turn in count():
            for route in ROUTES:
                for mode, many in ((GenerationMode.POSITIVE, few), (GenerationMode.NEGATIVE, few // 2)):
                    if turn and self.found.cases >= wanted:
                        return self.found
                    self._send_generated(route, mode, turn, many)
            self._world.tidy()
        raise AssertionError("not reached")

    def send_share(self) -> Findings:
        """Send one valid case of every operation, and this role's share of further cases; other roles send the rest."""
        for number, route in enumerate(ROUTES):
            roles = [role for role in Role if route.may.allows(role)]
            mine = roles[number % len(roles)] is self.found.role
            self._send_generated(route, GenerationMode.POSITIVE, 0, 2 if mine else 1)
            if mine:
                self._send_generated(route, GenerationMode.NEGATIVE, 0, 1)
        self._world.tidy()
        return self.found

    def _send_generated(self, route: Route, mode: GenerationMode, turn: int, many: int) -> None:
        if route.op == "POST /v1/shutdown" and self.found.role is Role.ADMIN:
            return  # `test_lifecycle` proves it: here it would end the test.
        help_level = iter(_first_then_mostly(self._chance, first=mode is GenerationMode.POSITIVE))

        # Without shrinking: the server has state, so the same request is not the same case a second time.
        @seed(turn)
        @settings(max_examples=many, database=None, deadline=None, phases=(Phase.generate,), derandomize=False,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=self._operations[route.op].as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case) -> None:
            self._send(route, case, next(help_level) if mode is GenerationMode.POSITIVE else "placed")

        try:
            send()
        except Unsatisfiable:  # Nothing of this operation can be made invalid.
            return

    def _send(self, route: Route, case: schemathesis.Case, help_level: str) -> None:
        self._prepare(route, case, help_level)
        given = case.as_transport_kwargs(base_url=self._url)
        right = help_level == "wholly" or self._chance.random() > 0.03
        key = self._key if right else self._chance.choice(["", "nonsense", self._key[:-1]])
        given["headers"] = {**given.get("headers", {}), "Accept": self._accept(route), "Hutch-Key": key}
        answer = self._session.request(**given, stream=True, timeout=TIMEOUT_SECONDS)
        with answer:
            endless = answer.headers.get("content-type", "").startswith(ENDLESS)
            content = next(answer.iter_content(None), b"") if endless else answer.content
        self.found.cases += 1
        self.found.statuses[answer.status_code] += 1
        if answer.status_code < 300:
            self.found.reached.add(route.op)
        response = schemathesis.Response(
            answer.status_code, {name.lower(): [value] for name, value in answer.headers.items()}, content,
            answer.request, answer.elapsed.total_seconds(), verify=False,
        )  # fmt: skip
        try:
            case.validate_response(response, checks=CHECKS)
        except (Failure, FailureGroup) as failure:
            self.found.wrong.append(f"{route.op} → {answer.status_code} {content[:300]!r}\n{failure}")

    def _prepare(self, route: Route, case: schemathesis.Case, help_level: str) -> None:
        """Replace generated ids by existing ones, and values with which a request would wait for hours."""
        if isinstance(case.body, dict) and isinstance(case.body.get("git"), str):
            case.body["git"] = NOWHERE
        if route.op == "POST /v1/images" and isinstance(case.body, dict) and isinstance(case.body.get("name"), str):
            case.body["name"] = self._no_image
        if route.path == "/v1/mcp-servers" and isinstance(case.body, dict):
            definition = case.body.get("definition")
            if isinstance(definition, dict):  # A definition must not start or call anything by itself.
                definition.pop("url", None)
                definition.pop("start", None)
        if help_level == "not" or not route.may.allows(self.found.role):
            return  # A role that may not use the route is refused before anything else is checked.
        parameters = dict(case.path_parameters or {})
        if "{box}" in route.path or "box" in getattr(route.body, "__struct_fields__", ()) or not parameters:
            self._world.box()
            if "files" in route.parts:
                self._world.file()
        for name in parameters:
            parameters[name] = self._world.value(name, route)
        case.path_parameters = parameters
        if route.parts[-1] in ("output", "events") and isinstance(case.query, dict) and "wait" in case.query:
            case.query["wait"] = 0
        if self.found.role is not Role.ADMIN and case.headers:
            case.headers.pop("Hutch-Admin", None)
        if help_level == "placed":
            return
        for name in OBSTACLES & set(case.headers or {}):
            del case.headers[name]
        fitting: dict[str, Any] = self._world.query(route)
        if fitting:
            case.query = {**(case.query or {}), **fitting} if help_level == "partly" else fitting
        if route.raw:
            case.body = self._world.content(route)
        elif route.body is not None:
            made = case.body if isinstance(case.body, dict) and help_level == "partly" else {}
            case.body = {**made, **self._world.body(route)}
            case.media_type = "application/json"

    def _accept(self, route: Route) -> str:
        return self._chance.choice(["*/*", "application/json", *route.streams, *route.streams])


def _first_then_mostly(chance: random.Random, *, first: bool) -> Iterator[str]:
    if first:
        yield "wholly"
    while True:
        yield chance.choices(["wholly", "partly", "placed", "not"], [1, 4, 3, 2])[0]


@cache
def operations(document: bytes) -> dict[str, Any]:
    """The operations of the API by name; all roles share them, because each builds its strategies once."""
    described = json.loads(document)
    del described["security"]  # The tests choose the keys.
    schema = schemathesis.openapi.from_dict(described)
    found = {each.ok().label: each.ok() for each in schema.get_all_operations()}
    assert set(found) == {route.op for route in ROUTES}
    return found


@pytest.fixture(scope="module")
def schema_server() -> Iterator[Server]:
    """A server of its own: these requests leave traces that other tests would count."""
    with serving() as started:
        yield started


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registry_server.Server]:
    """The registry from which images are pulled, so that no request leaves this machine."""
    with registry_server.running_registry(tmp_path_factory.mktemp("registry")) as started:
        started.push("world", registry_server.image(registry_server.tar_of(("file", {"data": b"x"}))))
        yield started


@pytest.mark.parametrize("role", list(Role))
def test_requests_of_every_role(schema_server: Server, registry: registry_server.Server, role: Role) -> None:
    """There is no 5xx and no answer that the document does not describe, and nine of ten operations succeed."""
    found = RoleClient(schema_server, role, registry).send_share()
    assert not found.wrong, f"{len(found.wrong)} wrong:\n" + "\n\n".join(found.wrong[:5])
    assert found.share >= 0.9, sorted(found.allowed - found.reached)
    assert "defect" not in schema_server.log.read_text()


@pytest.mark.proof
def test_two_thousand_requests_of_every_role(registry: registry_server.Server) -> None:
    """The same holds for 2,000 cases of each role."""
    wanted = int(os.environ.get("HUTCH_SCHEMA_CASES", "2000"))
    with serving() as server:
        all_found = [RoleClient(server, role, registry).send_cases(wanted) for role in Role]
        log = server.log.read_text()
    counts = {
        str(found.role): {
            "cases": found.cases,
            "statuses": {str(status): number for status, number in sorted(found.statuses.items())},
            "wrong": len(found.wrong),
            "operations_allowed": len(found.allowed),
            "operations_reaching_2xx": len(found.reached & found.allowed),
        }
        for found in all_found
    }
    wrong = [each for found in all_found for each in found.wrong]
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n\n".join(wrong[:10])
    assert "defect" not in log
    for found in all_found:
        assert found.cases >= wanted
        assert found.share >= 0.9, (found.role, sorted(found.allowed - found.reached))
    proofs.write("server-schema", operations=len(ROUTES), roles=counts)
