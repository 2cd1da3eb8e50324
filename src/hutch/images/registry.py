"""A registry: manifests and blobs by the OCI distribution protocol, with whatever proof of identity it asks for.

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
from hutch.images.connection import TRANSIENT, Answer, Cut, Rules, is_loopback, request
from hutch.images.credentials import Credentials
from hutch.images.references import DEFAULT_REGISTRY, Reference
from hutch.images.settings import ImageSettings, RegistrySettings
from hutch.logs import conceal, log

_API_HOSTS = {DEFAULT_REGISTRY: "registry-1.docker.io"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
_ANSWER_BYTES = 1 << 20

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
        self._rules = Rules(settings.timeout_sec, {**settings.registries, host: table})
        local = is_loopback(urlsplit(f"//{host}").hostname or "") and not table.authority
        self._base = f"{'http' if table.insecure or local else 'https'}://{host}/v2/{reference.repository}"
        self._authorization = ""
        # Protects the authorization: many layers find an ended token at once, and one of them fetches the next.
        self._lock = threading.Lock()

    def manifest(self, wanted: str) -> bytes:
        """By tag or digest. The caller verifies the digest."""
        headers = {"Accept": ", ".join(manifests.ACCEPTED)}

        def fetch() -> bytes:
            answer = self._ask(f"{self._base}/manifests/{wanted}", headers)
            try:
                return answer.read_all(manifests.MOST_BYTES, "the manifest")
            finally:
                answer.close()

        return self.trying(fetch, f"manifest {wanted}")

    def blob(self, digest: str, offset: int) -> Answer:
        """Its bytes from `offset` on; status 200 instead of 206 means from the beginning. One try."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        return self._ask(f"{self._base}/blobs/{digest}", headers)

    def trying(self, work: Callable[[], T], what: str) -> T:
        """Do it until it succeeds or was tried often enough; the pause grows."""
        pause = _FIRST_PAUSE
        for number in range(1, self._settings.tries + 1):
            try:
                return work()
            except Cut as cut:
                if number == self._settings.tries:
                    raise Unavailable(
                        f"{self._name} could not give {what}, in {number} tries: {cut}",
                        op="pull",
                        remedy="try again: what has arrived is kept for a day",
                    ) from cut
                log("images").info("trying again", registry=self._name, what=what, reason=str(cut), seconds=pause)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        raise AssertionError("tries is at least 1")

    def _ask(self, url: str, headers: dict[str, str]) -> Answer:
        answer = self._send(url, headers)
        if answer.status == 401:
            used, challenge = self._authorization, answer.header("WWW-Authenticate")
            answer.close()
            with self._lock:
                if self._authorization == used:  # else another thread has a newer one
                    self._authorization = self._authorize(challenge)
            answer = self._send(url, headers)
        if answer.status in (200, 206):
            return answer
        try:
            self._refuse(answer)
        finally:
            answer.close()
        raise AssertionError("_refuse always raises")

    def _send(self, url: str, headers: dict[str, str]) -> Answer:
        known = {"Authorization": self._authorization} if self._authorization else {}
        return request(url, self._rules, {**headers, **known})

    def _refuse(self, answer: Answer) -> None:
        told = _told(answer)
        where = f"{self._name}/{self._repository}"
        if answer.status in TRANSIENT:
            raise Cut(f"HTTP {answer.status}{told}")
        if answer.status in (401, 403):
            hint = "the credentials do not open it" if self._credentials else "it wants to know who we are"
            raise Unauthenticated(
                f"{where} does not let us in: {hint}{told}",
                op="pull",
                remedy="`docker login`, --username with --password-stdin, or [images.registries] in hutch.toml",
            )
        if answer.status == 404:
            raise NotFound(f"{where} has no such image{told}", op="pull", remedy="check its name and tag")
        if answer.status == 416:
            raise PastTheEnd
        raise EngineError(f"{where} answered HTTP {answer.status}{told}", op="pull")

    # --- who we are ------------------------------------------------------------------------------------------

    def _authorize(self, challenge: str) -> str:
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            if self._credentials is None or not self._credentials.password:
                raise self._nobody()
            return f"Basic {self._credentials.basic()}"
        if kind.lower() != "bearer":
            raise EngineError(f"{self._name} asks for {kind or 'nothing'!r}, which we do not know", op="pull")
        token = self.trying(lambda: self._token(dict(_CHALLENGE.findall(rest))), "a token")
        conceal([token])
        return f"Bearer {token}"

    def _token(self, challenge: dict[str, str]) -> str:
        """https://distribution.github.io/distribution/spec/auth/token/"""
        realm = challenge.get("realm", "")
        fields = {"service": challenge.get("service", ""), "scope": f"repository:{self._repository}:pull"}
        known = self._credentials
        # The token's server gets our password; `dial` refuses to send it without TLS to another machine.
        rules = self._rules
        if known is not None and known.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": known.identity_token,
                "client_id": "hutch",
                **fields,
            }
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = request(realm, rules, headers, method="POST", body=urlencode(form).encode())
        else:
            headers = {"Authorization": f"Basic {known.basic()}"} if known and known.password else {}
            answer = request(f"{realm}{'&' if '?' in realm else '?'}{urlencode(fields)}", rules, headers)
        try:
            if answer.status in TRANSIENT:
                raise Cut(f"HTTP {answer.status}")
            if answer.status != 200:
                raise self._nobody()
            plain = json.loads(answer.read_all(_ANSWER_BYTES, "the token"))
            return str(plain.get("token") or plain["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            if isinstance(error, HutchError):
                raise
            raise EngineError(f"{urlsplit(realm).netloc} answered what is no token", op="pull") from error
        finally:
            answer.close()

    def _nobody(self) -> Unauthenticated:
        known = self._credentials
        what = f"does not know {known.username!r} or its password" if known else "wants to know who we are"
        return Unauthenticated(
            f"{self._name} {what}",
            op="pull",
            remedy="`docker login`, --username with --password-stdin, or [images.registries] in hutch.toml",
        )


class PastTheEnd(Exception):
    """We have more bytes than the blob: what we have is not it."""


def _told(answer: Answer) -> str:
    """A registry's own words, if it has any; they come from outside, so one short line of them."""
    try:
        plain = json.loads(answer.read_all(_ANSWER_BYTES, "the answer"))
        text = str(plain["errors"][0].get("message") or plain["errors"][0].get("code"))
    except (Cut, ValueError, KeyError, IndexError, TypeError, AttributeError, HutchError):
        return ""
    return f": {''.join(each if each.isprintable() else '?' for each in text)[:200]}"
