"""Sandboxes by their own host names over TLS, as E2B's clients reach them without any address set (S13)."""

import json
from pathlib import Path

from tests.e2e.e2b_tls import DOMAIN, TlsServer


def test_names_below_the_domain_lead_to_the_sandbox(tls: TlsServer) -> None:
    """(S13) `api.DOMAIN` is the control plane, `49983-ID.DOMAIN` the agent, `PORT-ID.DOMAIN` a program in the box."""
    status, body = tls.call(f"api.{DOMAIN}", "POST", "/v2/sandboxes", {"templateID": "base"}, X_API_KEY=tls.key)
    assert status == 201
    made = json.loads(body)
    assert made["domain"] == f"{DOMAIN}:{tls.port}"
    sandbox, token = made["sandboxID"], made["envdAccessToken"]
    agent = f"49983-{sandbox}.{DOMAIN}"
    assert tls.call(agent, "GET", "/health")[0] == 204
    asked = {"path": "/home/user"}
    headers = {"Content_Type": "application/json", "X_Access_Token": token}
    status, body = tls.call(agent, "POST", "/filesystem.Filesystem/Stat", asked, **headers)
    assert (status, json.loads(body)["entry"]["type"]) == (200, "FILE_TYPE_DIRECTORY")
    status, body = tls.call(f"8080-{sandbox}.{DOMAIN}", "GET", "/")
    assert (status, json.loads(body)["message"]) == (502, "The sandbox is running but port is not open")
    assert tls.call(f"api.{DOMAIN}", "DELETE", f"/sandboxes/{sandbox}", X_API_KEY=tls.key)[0] == 204
    assert tls.call(agent, "GET", "/health")[0] == 502


def test_the_authority_is_made_once_and_its_key_is_private(tls: TlsServer, tmp_path: Path) -> None:
    """(S13) A second start uses the same certificate; nobody else reads the keys."""
    from hutch.server.http.authority import wildcard_certificate

    first = wildcard_certificate(tmp_path, "box.example")
    before = first.chain.read_bytes()
    again = wildcard_certificate(tmp_path, "box.example")
    assert again.chain.read_bytes() == before
    other = wildcard_certificate(tmp_path, "other.example")
    assert other.authority.read_bytes() == first.authority.read_bytes()
    for path in (first.key, tmp_path / "tls" / "authority.key"):
        assert path.stat().st_mode & 0o077 == 0
