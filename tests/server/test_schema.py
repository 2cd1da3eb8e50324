"""Generated requests against the described API: no server error, and nothing that the document does not tell of."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from tests.server.serving import PATIENCE, Server, serving
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
"""Where a repository would be fetched from: requests of a test leave this machine alone."""
OBSTACLES = {"Hutch-Session", "Hutch-Admin", "Hutch-Epoch", "Hutch-Observe", "Range"}
"""Headers that, made up, keep most requests from their work."""


@dataclass
class Findings:
    """What one role's requests have met."""

    role: Role
    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    reached: set[str] = field(default_factory=set)
    """Operations that gave a good answer at least once."""
    wrong: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> set[str]:
        return {route.op for route in ROUTES if route.may.allows(self.role)}

    @property
    def share(self) -> float:
        return len(self.reached & self.allowed) / len(self.allowed)


class Visitor:
    """Sends the requests of one role."""

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
        described = server.tcp(self._key).good("GET", "/v1/openapi.json")
        del described["security"]  # keys are ours to send
        schema = schemathesis.openapi.from_dict(described)
        self._operations = {each.ok().label: each.ok() for each in schema.get_all_operations()}
        assert set(self._operations) == {route.op for route in ROUTES}

    def visit(self, wanted: int) -> Findings:
        """Every operation in turn, until that many cases were sent and none was left out."""
        for turn in count():
            for route in ROUTES:
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    if turn and self.found.cases >= wanted:
                        return self.found
                    few = max(2, min(PER_ROUND, wanted // (2 * len(ROUTES))))
                    self._some(route, mode, turn, few if mode is GenerationMode.POSITIVE else few // 2)
            self._world.tidy()
        raise AssertionError("not reached")

    def _some(self, route: Route, mode: GenerationMode, turn: int, many: int) -> None:
        helped = iter(_first_then_mostly(self._chance, first=mode is GenerationMode.POSITIVE))

        # Without shrinking: the server remembers, so the same request is not the same case a second time.
        @seed(turn)
        @settings(max_examples=many, database=None, deadline=None, phases=(Phase.generate,), derandomize=False,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=self._operations[route.op].as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case) -> None:
            self._send(route, case, next(helped) if mode is GenerationMode.POSITIVE else "placed")

        try:
            send()
        except Unsatisfiable:  # nothing of this operation can be made wrong
            return

    def _send(self, route: Route, case: schemathesis.Case, helped: str) -> None:
        self._prepare(route, case, helped)
        given = case.as_transport_kwargs(base_url=self._url)
        key = self._key if self._chance.random() > 0.03 else self._chance.choice(["", "nonsense", self._key[:-1]])
        given["headers"] = {**given.get("headers", {}), "Accept": self._accept(route), "Hutch-Key": key}
        answer = self._session.request(**given, stream=True, timeout=PATIENCE)
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

    def _prepare(self, route: Route, case: schemathesis.Case, helped: str) -> None:
        """Things that are there instead of made-up ones; requests that do not wait for hours."""
        if isinstance(case.body, dict) and isinstance(case.body.get("git"), str):
            case.body["git"] = NOWHERE
        if route.op == "POST /v1/images" and isinstance(case.body, dict) and isinstance(case.body.get("name"), str):
            case.body["name"] = self._no_image
        if route.path == "/v1/mcp-servers" and isinstance(case.body, dict):
            definition = case.body.get("definition")
            if isinstance(definition, dict):  # nothing is to be started, or called, by its definition alone
                definition.pop("url", None)
                definition.pop("start", None)
        if helped == "not":
            return
        parameters = dict(case.path_parameters or {})
        if "{box}" in route.path or "box" in getattr(route.body, "__struct_fields__", ()) or not parameters:
            self._world.box()
            if "files" in route.parts:
                self._world.file()
        for name in parameters:
            parameters[name] = self._world.value(name, route)
        case.path_parameters = parameters
        if route.parts[-1] == "output" and isinstance(case.query, dict) and "wait" in case.query:
            case.query["wait"] = 0
        if self.found.role is not Role.ADMIN and case.headers:
            case.headers.pop("Hutch-Admin", None)
        if helped == "placed":
            return
        for name in OBSTACLES & set(case.headers or {}):
            del case.headers[name]
        fitting: dict[str, Any] = self._world.query(route)
        if fitting:
            case.query = {**(case.query or {}), **fitting} if helped == "partly" else fitting
        if route.raw:
            case.body = self._world.content(route)
        elif route.body is not None:
            made = case.body if isinstance(case.body, dict) and helped == "partly" else {}
            case.body = {**made, **self._world.body(route)}
            case.media_type = "application/json"

    def _accept(self, route: Route) -> str:
        return self._chance.choice(["*/*", "application/json", *route.streams, *route.streams])


def _first_then_mostly(chance: random.Random, *, first: bool) -> Iterator[str]:
    if first:
        yield "wholly"
    while True:
        yield chance.choices(["wholly", "partly", "placed", "not"], [1, 4, 3, 2])[0]


@pytest.fixture(scope="module")
def schema_server() -> Iterator[Server]:
    """One of its own: thousands of requests leave traces that other tests would count."""
    with serving() as started:
        yield started


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registry_server.Server]:
    """Where images are pulled from: requests of a test leave this machine alone."""
    with registry_server.running_registry(tmp_path_factory.mktemp("registry")) as started:
        started.push("world", registry_server.image(registry_server.tar_of(("file", {"data": b"x"}))))
        yield started


@pytest.mark.parametrize("role", list(Role))
def test_requests_of_every_role(schema_server: Server, registry: registry_server.Server, role: Role) -> None:
    """Issue 4: no 5xx, no answer that the document does not describe, and nine of ten operations do their work."""
    found = Visitor(schema_server, role, registry).visit(150)
    assert not found.wrong, f"{len(found.wrong)} wrong:\n" + "\n\n".join(found.wrong[:5])
    assert found.share >= 0.9, sorted(found.allowed - found.reached)
    assert "defect" not in schema_server.log.read_text()


@pytest.mark.proof
def test_two_thousand_requests_of_every_role(registry: registry_server.Server) -> None:
    """Issue 4: at least 2,000 cases for each role."""
    wanted = int(os.environ.get("HUTCH_SCHEMA_CASES", "2000"))
    with serving() as server:
        all_found = [Visitor(server, role, registry).visit(wanted) for role in Role]
        log = server.log.read_text()
    told = {
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
    proofs.write("server-schema", operations=len(ROUTES), roles=told)
