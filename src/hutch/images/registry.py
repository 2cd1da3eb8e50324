"""A registry client: manifests and blobs by the OCI distribution protocol, with the authentication it asks for.

https://github.com/opencontainers/distribution-spec
"""

import json
import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

from hutch.errors import EngineError, HutchError, NotFound, Unauthenticated, Unavailable
from hutch.images import manifests
from hutch.images.connection import TRANSIENT_STATUSES, ConnectionRules, Response, TransientError, is_loopback, request
from hutch.images.credentials import Credentials
from hutch.images.references import DEFAULT_REGISTRY, Reference
from hutch.images.settings import ImageSettings, RegistrySettings
from hutch.logs import conceal, log

_API_HOSTS = {DEFAULT_REGISTRY: "registry-1.docker.io"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
_MAX_RESPONSE_BYTES = 1 << 20

T = TypeVar("T")


class Registry:
    """One repository of one registry; safe to use from several threads."""

    def __init__(
        self, reference: Reference, settings: ImageSettings, credentials: Credentials | None, *, insecure: bool = False
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._name = reference.registry
        self._repository = reference.repository
        host = _API_HOSTS.get(reference.registry, reference.registry)
        table = settings.registries.get(reference.registry, RegistrySettings())
        table = table.but(insecure=True) if insecure else table
        self._rules = ConnectionRules(settings.timeout_sec, {**settings.registries, host: table})
        local = is_loopback(urlsplit(f"//{host}").hostname or "") and not table.authority
        self._base = f"{'http' if table.insecure or local else 'https'}://{host}/v2/{reference.repository}"
        self._authorization = ""
        # Protects the authorization: many layers find an expired token at once, and one of them fetches the next.
        self._lock = threading.Lock()

    def manifest(self, wanted: str) -> bytes:
        """Fetch a manifest by tag or digest. The caller verifies the digest."""
        headers = {"Accept": ", ".join(manifests.ACCEPTED)}

        def fetch() -> bytes:
            response = self._request(f"{self._base}/manifests/{wanted}", headers)
            try:
                return response.read_all(manifests.MAX_DOCUMENT_BYTES, "the manifest")
            finally:
                response.close()

        return self.retry(fetch, f"manifest {wanted}")

    def blob(self, digest: str, offset: int) -> Response:
        """Fetch a blob from `offset` on, in one attempt; status 200 instead of 206 means from the beginning."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        return self._request(f"{self._base}/blobs/{digest}", headers)

    def retry(self, work: Callable[[], T], what: str) -> T:
        """Run `work` until it succeeds or all attempts are used up; the pause grows."""
        pause = _FIRST_PAUSE
        for number in range(1, self._settings.tries + 1):
            try:
                return work()
            except TransientError as error:
                if number == self._settings.tries:
                    raise Unavailable(
                        f"{self._name} could not provide {what} after {number} tries: {error}",
                        op="pull",
                        remedy="try again: what has arrived is kept for a day",
                    ) from error
                log("images").info("trying again", registry=self._name, what=what, reason=str(error), seconds=pause)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        raise AssertionError("tries is at least 1")

    def _request(self, url: str, headers: dict[str, str]) -> Response:
        response = self._send(url, headers)
        if response.status == 401:
            used, challenge = self._authorization, response.header("WWW-Authenticate")
            response.close()
            with self._lock:
                if self._authorization == used:  # otherwise another thread has a newer one
                    self._authorization = self._authorize(challenge)
            response = self._send(url, headers)
        if response.status in (200, 206):
            return response
        try:
            self._raise_for_status(response)
        finally:
            response.close()
        raise AssertionError("_raise_for_status always raises")

    def _send(self, url: str, headers: dict[str, str]) -> Response:
        known = {"Authorization": self._authorization} if self._authorization else {}
        return request(url, self._rules, {**headers, **known})

    def _raise_for_status(self, response: Response) -> None:
        text = _error_text(response)
        where = f"{self._name}/{self._repository}"
        if response.status in TRANSIENT_STATUSES:
            raise TransientError(f"HTTP {response.status}{text}")
        if response.status in (401, 403):
            hint = "it does not accept the credentials" if self._credentials else "it requires credentials"
            raise Unauthenticated(
                f"{where} denies access: {hint}{text}",
                op="pull",
                remedy="`docker login`, --username with --password-stdin, or [images.registries] in hutch.toml",
            )
        if response.status == 404:
            raise NotFound(f"{where} has no such image{text}", op="pull", remedy="check its name and tag")
        if response.status == 416:
            raise RangeNotSatisfiable
        raise EngineError(f"{where} answered HTTP {response.status}{text}", op="pull")

    # --- authentication --------------------------------------------------------------------------------------

    def _authorize(self, challenge: str) -> str:
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            if self._credentials is None or not self._credentials.password:
                raise self._unauthenticated()
            return f"Basic {self._credentials.basic()}"
        if kind.lower() != "bearer":
            raise EngineError(f"{self._name} asks for {kind or 'nothing'!r}, which is not supported", op="pull")
        token = self.retry(lambda: self._token(dict(_CHALLENGE.findall(rest))), "a token")
        conceal([token])
        return f"Bearer {token}"

    def _token(self, challenge: dict[str, str]) -> str:
        """https://distribution.github.io/distribution/spec/auth/token/"""
        realm = challenge.get("realm", "")
        fields = {"service": challenge.get("service", ""), "scope": f"repository:{self._repository}:pull"}
        known = self._credentials
        # The token server receives our password; `dial` refuses to send it to another machine without TLS.
        rules = self._rules
        if known is not None and known.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": known.identity_token,
                "client_id": "hutch",
                **fields,
            }
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            response = request(realm, rules, headers, method="POST", body=urlencode(form).encode())
        else:
            headers = {"Authorization": f"Basic {known.basic()}"} if known and known.password else {}
            response = request(f"{realm}{'&' if '?' in realm else '?'}{urlencode(fields)}", rules, headers)
        try:
            if response.status in TRANSIENT_STATUSES:
                raise TransientError(f"HTTP {response.status}")
            if response.status != 200:
                raise self._unauthenticated()
            plain = json.loads(response.read_all(_MAX_RESPONSE_BYTES, "the token"))
            return str(plain.get("token") or plain["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            if isinstance(error, HutchError):
                raise
            raise EngineError(f"{urlsplit(realm).netloc} did not return a token", op="pull") from error
        finally:
            response.close()

    def _unauthenticated(self) -> Unauthenticated:
        known = self._credentials
        what = f"does not accept {known.username!r} or its password" if known else "requires credentials"
        return Unauthenticated(
            f"{self._name} {what}",
            op="pull",
            remedy="`docker login`, --username with --password-stdin, or [images.registries] in hutch.toml",
        )


class RangeNotSatisfiable(Exception):
    """The partial download is longer than the blob, so it is not a part of it."""


def _error_text(response: Response) -> str:
    """Return the registry's own message as one short line, because it is untrusted; empty if it has none."""
    try:
        plain = json.loads(response.read_all(_MAX_RESPONSE_BYTES, "the response"))
        text = str(plain["errors"][0].get("message") or plain["errors"][0].get("code"))
    except (TransientError, ValueError, KeyError, IndexError, TypeError, AttributeError, HutchError):
        return ""
    return f": {''.join(each if each.isprintable() else '?' for each in text)[:200]}"
