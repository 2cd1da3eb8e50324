"""The numbers of /metrics, read by Prometheus' own parser, follow what happens (S9)."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hutch.model.boxes import EventCause
from hutch.model.spec import Spec
from hutch.server import exposition
from hutch.server.metrics import Metrics
from tests.keeper.faulty import Engine
from tests.keeper.faulty_keeper import keeper_on
from tests.server.serving import Client, Server, serving, until
from tests.server.test_websockets import attached


def numbers(client: Client) -> dict[str, float]:
    """By name and labels, as `name{a=b,c=d}`."""
    answer = client.call("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found, f"{name} occurs twice"
            found[name] = sample.value
    return found


def moved(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after.get(name, 0) - before.get(name, 0)


def test_numbers_follow_what_happens() -> None:
    """Boxes by state, creations, ends by reason, failures by code, verdicts by cause and latencies are counted (S9)."""
    with serving() as server:
        client = server.unix()
        before = numbers(client)
        with client.box(memory_mb=64) as box:
            for command in ("true", "exit 1", "exit 1", "kill -9 $$"):
                client.good("POST", f"{box}/exec", {"command": command})
            client.good("POST", f"{box}/exec", {"command": "sleep 100", "timeout": 0.2})
            client.good("PUT", f"{box}/files/content?path=a", b"x")
            assert client.call("GET", f"{box}/files/content?path=none").status == 404
            during = numbers(client)
            client.good("POST", f"{box}/pause")
            paused = numbers(client)
        after = numbers(client)
        labels = "profile=default,provider=native,state"
        assert during[f"hutch_boxes{{{labels}=running}}"] == 1
        assert f"hutch_boxes{{{labels}=running}}" not in paused and paused[f"hutch_boxes{{{labels}=paused}}"] == 1
        assert moved(before, after, "hutch_boxes_created_total{profile=default}") == 1
        assert moved(before, after, "hutch_boxes_cleaned_total{profile=default,reason=call}") == 1
        for cause, count in (("ok", 1), ("exit", 2), ("signal", 1), ("timeout", 1)):
            assert moved(before, after, f"hutch_commands_total{{cause={cause}}}") == count, cause
        assert moved(before, after, "hutch_failures_total{code=file_not_found}") == 1
        assert moved(before, after, "hutch_operation_seconds_count{op=exec}") == 5
        assert moved(before, after, "hutch_operation_seconds_sum{op=exec}") >= 0.2
        assert moved(before, after, "hutch_operation_seconds_bucket{le=+Inf,op=exec}") == 5
        assert moved(before, after, "hutch_operation_seconds_bucket{le=0.1,op=exec}") <= 4
        assert moved(before, after, "hutch_operation_seconds_count{op=files.write}") == 1
        route = "POST /v1/boxes/{box}/exec"
        assert moved(before, after, f"hutch_requests_total{{op={route},status=200}}") == 5
        assert moved(before, after, f"hutch_request_seconds_count{{op={route}}}") == 5
        assert after["hutch_requests_active{type=http}"] == 1, "this one"
        assert after["hutch_connections{door=unix}"] >= 1
        assert until(lambda: numbers(client)["hutch_receipts_waiting"] == 0)
        assert numbers(client)["hutch_receipts_total"] > 10


def test_the_pool_counts_claims_and_misses() -> None:
    """Boxes claimed from the pool are counted apart from those that a scope finds again (S9)."""
    with serving() as server:
        server.end()
        (server.top / "hutch.toml").write_text("[pool]\ndefault = 1\n")
        server.start("--config", str(server.top / "hutch.toml"))
        client = server.unix()
        until(lambda: numbers(client)["hutch_pool_ready{profile=default}"] == 1)
        boxes = [client.good("POST", "/v1/boxes", {})["id"] for _ in range(3)]
        found = numbers(client)
        claims, misses = (found[f"hutch_pool_{name}_total{{profile=default}}"] for name in ("claims", "misses"))
        assert claims + misses == 3 and claims >= 1
        assert found["hutch_boxes_claimed_total{profile=default}"] == claims
        assert found["hutch_boxes_reused_total{profile=default}"] == 0, "nobody has come back to a box"
        for box in boxes:
            client.good("DELETE", f"/v1/boxes/{box}")


def test_a_box_that_its_scope_finds_again_is_reused(client: Client) -> None:
    """`reused` counts conversations that come back to their box, by the real event (S9, lesson 48)."""
    name = "hutch_boxes_reused_total{profile=default}"
    scope = {"template": "{chat}", "values": {"chat": "reuse"}}
    before = numbers(client)
    found = [client.good("POST", "/v1/scopes", scope)["box"]["id"] for _ in range(3)]
    after = numbers(client)
    assert len(set(found)) == 1
    assert moved(before, after, name) == 2, "the first made it"
    assert moved(before, after, "hutch_boxes_created_total{profile=default}") == 1
    client.good("DELETE", f"/v1/boxes/{found[0]}?force=true")


def test_open_sockets_are_counted(client: Client) -> None:
    """Open WebSockets are counted (S9)."""
    with client.box(memory_mb=64) as box:
        with attached(client, f"{box}/terminal") as socket:
            socket.send(b"echo re''ady\n")
            socket.recv()
            assert numbers(client)["hutch_requests_active{type=websocket}"] == 1
        until(lambda: numbers(client)["hutch_requests_active{type=websocket}"] == 0)


async def test_a_box_that_gives_no_answer_is_counted(tmp_path: Path) -> None:
    """Failed health checks and ends of boxes are counted by profile (S9)."""
    engine = Engine()
    keeper = keeper_on(engine, tmp_path)
    metrics = Metrics(keeper)
    await keeper.start()
    live = await keeper.create(Spec(profile="code"), session="s")
    engine.broken.add(live.record.id)
    await keeper.health.check(live)
    await keeper.teardown.destroy(live, "it was broken", EventCause.REPLACED)
    await keeper.close()
    text = exposition.text(metrics).decode()
    assert 'hutch_boxes_health_check_failures_total{profile="code"} 1.0' in text
    assert 'hutch_boxes_cleaned_total{profile="code",reason="replaced"} 1.0' in text


def test_names_that_callers_choose_are_no_labels(server: Server) -> None:
    """A label with a value for each caller would let callers fill the storage of Prometheus."""
    user = server.tcp(server.key("user", "label-owner"), hutch_session="label-session")
    with user.box(memory_mb=64, name="label-name", labels={"kind": "label-value"}) as box:
        user.good("POST", f"{box}/exec", {"command": "true label-command"})
        user.good("POST", f"{box}/receipts", {"op": "tool.label-tool"})
        user.call("GET", "/v1/label-path")
        text = server.unix().call("GET", "/metrics").body.decode()
    assert "label-" not in text
