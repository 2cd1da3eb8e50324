"""The cluster's API: the few calls that boxes need, on lightkube, with the cluster's errors as ours.

lightkube reads kubeconfigs, signs in and speaks REST; a relay's bytes go over the exec API's WebSocket, for which the
same HTTP client is used, because lightkube's own `exec` only collects what a command has printed.
"""

import asyncio
import importlib.util
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from hutch.errors import (
    ConfigError,
    Conflict,
    EngineError,
    HutchError,
    NotFound,
    QuotaExceeded,
    Refused,
    Unavailable,
    Unsupported,
)
from hutch.providers.kubernetes.manifests import Manifest
from hutch.providers.kubernetes.settings import Settings

T = TypeVar("T")

KINDS = ("Pod", "Secret", "NetworkPolicy", "PersistentVolumeClaim")
"""The kinds of a box's objects, in the order in which they are removed."""
_PLURALS = {
    "Pod": "pods", "Secret": "secrets", "NetworkPolicy": "networkpolicies",
    "PersistentVolumeClaim": "persistentvolumeclaims", "Event": "events", "Sandbox": "sandboxes",
}  # fmt: skip
SANDBOXES = "agents.x-k8s.io"
"""The API group of agent-sandbox."""
_SANDBOX_VERSIONS = ("v1beta1", "v1alpha1")
_GROUPS = {"NetworkPolicy": "networking.k8s.io", "Sandbox": SANDBOXES}
_TRIES = 4
_RETRIED = (429, 500, 503, 504)
_LONGEST_PAUSE = 30.0
"""A server may name any time after which to ask again."""
_ADMISSION = re.compile(r'is forbidden: (?!User ")')
"""How an API server begins a refusal that no right would change: Pod Security, a LimitRange, a namespace that ends."""
_ANSWER_SECONDS = 10.0
_WATCH_SECONDS = 300
_LOG_BYTES = 4096
_EVENT_BYTES = 16 << 20
_MESSAGE_LETTERS = 2000
"""An answer of the API server may repeat the whole object that it refuses."""


class _WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: Manifest


_WATCH_EVENTS = msgspec.json.Decoder(_WatchEvent)


def is_installed() -> bool:
    return importlib.util.find_spec("lightkube") is not None


class Cluster:
    """One namespace of one cluster."""

    def __init__(self, settings: Settings) -> None:
        from lightkube import AsyncClient, KubeConfig
        from lightkube.core.exceptions import ConfigError as KubeConfigError

        try:
            config = _kubeconfig(KubeConfig, settings)
            self.client = AsyncClient(config=config, namespace=settings.namespace or None, trust_env=False, lazy=False)
        except (KubeConfigError, OSError, KeyError, ValueError) as error:
            raise ConfigError(
                f"the cluster's configuration cannot be used: {error}",
                remedy="check [providers.kubernetes] kubeconfig and context, or KUBECONFIG",
            ) from error
        self._sandboxes: Any = None
        """The resource class of agent-sandbox's Sandbox, once the cluster has said which version it serves."""

    @property
    def namespace(self) -> str:
        return str(self.client.namespace)

    @property
    def server(self) -> str:
        return str(self.client.config.cluster.server)

    async def version(self) -> str:
        async with _translated("get", "version"):
            response = await self._http().get("/version")
            response.raise_for_status()
            return str(response.json().get("gitVersion", "unknown"))

    async def sandbox_api(self) -> str:
        """Return the apiVersion of Sandboxes that the cluster serves.

        Raises:
            Unsupported: agent-sandbox's resource definitions are not installed.
        """
        async with _translated("get", "version"):
            response = await self._http().get(f"/apis/{SANDBOXES}")
            if response.status_code != 404:
                response.raise_for_status()
            served = {each["version"] for each in response.json().get("versions", ())}
        for version in _SANDBOX_VERSIONS:
            if version in served:
                return f"{SANDBOXES}/{version}"
        raise Unsupported(
            "the cluster has no Sandbox resources: agent-sandbox is not installed",
            op="create",
            remedy='install agent-sandbox, or set [providers.kubernetes] workload = "pod"',
        )

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object. One that is there already counts as created: a repeated request gets this answer."""
        kind = manifest["kind"]
        resource = await self._resource(kind)

        async def attempt() -> Manifest:
            made = await self.client.create(resource.from_dict(manifest))
            return dict(made.to_dict())

        try:
            return await self._retried("create", kind, attempt)
        except _Exists:
            return await self.get(kind, manifest["metadata"]["name"])

    async def get(self, kind: str, name: str) -> Manifest:
        """Return an object. Raises NotFound."""
        resource = await self._resource(kind)

        async def attempt() -> Manifest:
            return dict((await self.client.get(resource, name)).to_dict())

        return await self._retried("get", kind, attempt)

    async def patch(self, kind: str, name: str, operations: list[Manifest]) -> Manifest:
        """Change an object by a JSON patch, which its `test` operations make a compare-and-set.

        Raises:
            Conflict: Somebody else has changed what the patch tests.
            NotFound: The object is gone.
        """
        from lightkube.types import PatchType

        resource = await self._resource(kind)

        async def attempt() -> Manifest:
            return dict((await self.client.patch(resource, name, operations, patch_type=PatchType.JSON)).to_dict())

        return await self._retried("patch", kind, attempt)

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object at once; one that is gone is fine."""
        from lightkube.types import CascadeType

        resource = await self._resource(kind)

        async def attempt() -> None:
            grace = 0 if kind == "Pod" else None
            await self.client.delete(resource, name, grace_period=grace, cascade=CascadeType.BACKGROUND)

        try:
            await self._retried("delete", kind, attempt)
        except NotFound:
            return

    async def objects(self, kind: str, labels: Mapping[str, str | None]) -> list[Manifest]:
        """Return the objects that have these labels; a value of None asks only that the label is there."""
        selector: dict[str, Any] = {name: _exists() if value is None else value for name, value in labels.items()}
        resource = await self._resource(kind)

        async def attempt() -> list[Manifest]:
            found = self.client.list(resource, labels=selector, chunk_size=500)
            return [dict(each.to_dict()) async for each in found]

        return await self._retried("list", kind, attempt)

    async def events(self, name: str) -> list[str]:
        """Return what the cluster says about a Pod that does not start, newest last."""
        found = []
        resource = await self._resource("Event")
        async with _translated("list", "Event"):
            async for each in self.client.list(resource, fields={"involvedObject.name": name}):
                found.append((str(each.lastTimestamp or each.eventTime or ""), f"{each.reason}: {each.message}"))
        return [text for _, text in sorted(found)]

    async def log(self, pod: str, container: str) -> str:
        """Return the last words of a container; "" where nobody has them any more."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        asked = {"container": container, "tailLines": "5", "limitBytes": str(_LOG_BYTES)}
        try:
            async with _translated("get", "pods/log"):
                response = await self._http().get(path, params=asked)
                response.raise_for_status()
                return " ".join(response.text.split())[-500:]
        except Refused as error:
            return error.remedy
        except HutchError:
            return ""

    async def watch(self, labels: Mapping[str, str]) -> AsyncIterator[tuple[str, Manifest]]:
        """Yield what happens to Pods, beginning with those that are there, until the server ends the watch.

        It does so after some minutes. A server that is silent for longer than that counts as gone.
        """
        import httpx2

        path = f"/api/v1/namespaces/{self.namespace}/pods"
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        asked = {"watch": "true", "labelSelector": selector, "timeoutSeconds": str(_WATCH_SECONDS)}
        patience = httpx2.Timeout(_ANSWER_SECONDS, read=_WATCH_SECONDS + _ANSWER_SECONDS)
        async with _translated("watch", "Pod"):
            async with self._http().stream("GET", path, params=asked, timeout=patience) as response:
                response.raise_for_status()
                async for line in _lines(response.aiter_bytes()):
                    event = _WATCH_EVENTS.decode(line)
                    if event.type == "ERROR":
                        status = int(event.object.get("code") or 0)
                        raise _of_status(status, str(event.object.get("message", "")), "watch", "Pod")
                    yield event.type, event.object

    @asynccontextmanager
    async def exec(self, pod: str, container: str, argv: list[str]) -> AsyncIterator[Any]:
        """Start a command in a container, and yield the WebSocket that carries its streams."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/exec"
        asked = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        asked += [("command", word) for word in argv]
        async with _translated("create", "pods/exec"):
            async with self._http().websocket(path, params=asked, subprotocols=["v5.channel.k8s.io"]) as socket:
                yield socket

    async def close(self) -> None:
        await self.client.close()

    async def _resource(self, kind: str) -> Any:
        """Return lightkube's class of a kind. Which version of Sandboxes there is, only the cluster knows."""
        from lightkube.generic_resource import create_namespaced_resource
        from lightkube.resources import core_v1, networking_v1

        if kind == "Sandbox":
            if self._sandboxes is None:
                version = (await self.sandbox_api()).partition("/")[2]
                self._sandboxes = create_namespaced_resource(SANDBOXES, version, kind, _PLURALS[kind])
            return self._sandboxes
        return getattr(networking_v1 if kind == "NetworkPolicy" else core_v1, kind)

    def _http(self) -> Any:
        """The HTTP client below lightkube, which has the cluster's address, trust and credentials."""
        return self.client._client._client

    async def _retried(self, verb: str, kind: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that the API server was too busy for. Each call may safely be repeated."""
        for left in reversed(range(_TRIES)):
            try:
                async with _translated(verb, kind):
                    return await attempt()
            except HutchError as error:
                if not left or error.details.get("status") not in _RETRIED:
                    raise
                await asyncio.sleep(min(error.retry_after or 0.2 * 2 ** (_TRIES - left), _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. Only a newline ends one: a Pod's texts may hold what Unicode also calls its end."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > _EVENT_BYTES:
            raise EngineError(f"Kubernetes: an event of more than {_EVENT_BYTES} bytes", op="watch")


class _Exists(EngineError):
    """The object is there already."""


@asynccontextmanager
async def _translated(verb: str, kind: str) -> AsyncIterator[None]:
    import httpx2
    from httpx2.websockets import WebSocketUpgradeError
    from lightkube.core.exceptions import ApiError, ConditionError, ObjectDeleted
    from lightkube.core.exceptions import ConfigError as KubeConfigError

    try:
        yield
    except KubeConfigError as error:  # A token's file that is gone, or a program of the kubeconfig that gives no token.
        raise Refused(
            f"Kubernetes: {error}"[:_MESSAGE_LETTERS], op=verb, remedy="renew the credentials of the kubeconfig"
        ) from error
    except ApiError as error:
        raise _to_hutch_error(error, verb, kind) from error
    except (ConditionError, ObjectDeleted, msgspec.MsgspecError) as error:
        raise EngineError(f"Kubernetes: {error}", op=verb) from error
    except httpx2.HTTPStatusError as error:
        status = error.response.status_code
        raise _of_status(status, f"the API server answered {status}", verb, kind) from error
    except WebSocketUpgradeError as error:
        status = error.response.status_code
        # A WebSocket begins with a GET, and newer API servers check the right to both verbs.
        raise _of_status(status, f"the API server answered {status}", "get" if status == 403 else verb, kind) from error
    except (httpx2.HTTPError, OSError) as error:
        raise Unavailable(
            f"the cluster cannot be reached: {error or type(error).__name__}",
            op=verb,
            remedy="check the API server's address in the kubeconfig, and that it runs",
        ) from error


def _to_hutch_error(error: Any, verb: str, kind: str) -> HutchError:
    status = int(error.status.code or 0)
    found = _of_status(status, str(error.status.message or error), verb, kind)
    details = error.status.details
    if status == 429 and details is not None and details.retryAfterSeconds:
        found.retry_after = float(details.retryAfterSeconds)
    return found


def _of_status(status: int, message: str, verb: str, kind: str) -> HutchError:
    text, details = f"Kubernetes: {message[:_MESSAGE_LETTERS]}", {"status": status}
    if status == 401:
        return Refused(text, op=verb, details=details, remedy="renew the credentials of the kubeconfig")
    if status == 403 and "quota" in message:
        return QuotaExceeded(text, op=verb, details=details, remedy="raise the namespace's ResourceQuota")
    if status == 403 and _ADMISSION.search(message):
        return Refused(text, op=verb, details=details, remedy="the cluster's own rules refuse this: see its message")
    if status == 403:
        return Refused(text, op=verb, details=details, remedy=f"give Hutch's account this rule: {rule(verb, kind)}")
    if status == 404:
        return NotFound(text, op=verb, details=details)
    if verb == "patch" and status in (409, 422):
        return Conflict(f"somebody else changed the {kind} meanwhile: {text}", op=verb, details=details)
    if status == 409:
        return _Exists(text, op=verb, details=details)
    if status in _RETRIED:
        return Unavailable(text, op=verb, details=details, remedy="the API server is busy: try again")
    return EngineError(text, op=verb, details=details)


def rule(verb: str, kind: str) -> str:
    """Return the RBAC rule that allows this call."""
    resource = _PLURALS.get(kind, kind)
    return f'apiGroups ["{_GROUPS.get(kind, "")}"], resources ["{resource}"], verbs ["{verb}"]'


def _kubeconfig(loader: Any, settings: Settings) -> Any:
    path = settings.kubeconfig or os.environ.get("KUBECONFIG", "")
    if path:
        found = loader.from_file(os.path.expanduser(path))
    elif os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"):
        found = loader.from_service_account()
    else:
        found = loader.from_file(os.path.expanduser("~/.kube/config"))
    return found.get(settings.context or None)


def _exists() -> Any:
    from lightkube.operators import exists

    return exists()
