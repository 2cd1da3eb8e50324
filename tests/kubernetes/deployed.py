"""deploy/kubernetes/hutch.yaml on a real cluster: applied into its namespace, and used with the account it makes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.codecs import load_all_yaml
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod, Secret, ServiceAccountToken
from lightkube.resources.rbac_authorization_v1 import Role
from psycopg.conninfo import conninfo_to_dict

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "hutch.yaml"
NAMESPACE = "hutch"
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


class Deployment:
    """The applied objects."""

    def __init__(self, client: AsyncClient, settings: dict[str, Any]) -> None:
        self._client = client
        self._settings = settings
        self.applied: list[str] = []
        """The kinds of the objects that the API server has taken, in order."""

    async def apply(self) -> None:
        for each in load_all_yaml(MANIFESTS.read_text()):
            await self._client.apply(each, field_manager="hutch-test", force=True)
            self.applied.append(str(each.kind))

    async def account(self, directory: Path) -> dict[str, Any]:
        """Return the provider's table for the account that the manifests make, in its namespace."""
        asked = ServiceAccountToken(spec=TokenRequestSpec(audiences=[]), metadata=ObjectMeta())
        answer = await self._client.create(asked, "hutch", namespace=NAMESPACE)
        assert answer.status is not None
        config = yaml.safe_load(Path(self._settings["kubeconfig"]).read_text())
        config["users"] = [{"name": "account", "user": {"token": answer.status.token}}]
        context = {"cluster": config["clusters"][0]["name"], "user": "account", "namespace": NAMESPACE}
        config |= {"contexts": [{"name": "account", "context": context}], "current-context": "account"}
        path = directory / "account.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return {**self._settings, "kubeconfig": str(path), "namespace": NAMESPACE}

    async def take_away(self, resource: str, verb: str) -> None:
        """Remove one verb of one resource from the account's Role."""
        role = await self._client.get(Role, "hutch", namespace=NAMESPACE)
        for rule in role.rules or ():
            if resource in (rule.resources or ()):
                rule.verbs = [each for each in rule.verbs if each != verb]
        await self._client.replace(role)

    async def wait_for_servers(self) -> list[str]:
        """Wait until all servers of the Deployment are ready, and return their addresses."""
        while True:
            pods = await self.server_pods()
            ready = [each["status"]["podIP"] for each in pods if _is_ready(each)]
            if len(ready) == 2:
                return [f"http://{address}:7300" for address in ready]
            await asyncio.sleep(1)

    async def first_key(self) -> str:
        """Return the key that the first of the servers has made, as an operator reads it."""
        for pod in await self.server_pods():
            read = ["sh", "-c", "cat /var/lib/hutch/state/first-key || true"]
            name = pod["metadata"]["name"]
            answer = await self._client.exec(name, namespace=NAMESPACE, container="hutch", command=read, stdout=True)
            if said := str(answer.stdout or "").strip():
                return said
        raise AssertionError("no server has a first key")

    async def server_pods(self) -> list[dict[str, Any]]:
        """Return the servers' Pods that the cluster has made, which the restricted standard has let pass."""
        found = self._client.list(Pod, namespace=NAMESPACE, labels={"app.kubernetes.io/name": "hutch"})
        return [each.to_dict() async for each in found]


@asynccontextmanager
async def deployed(settings: dict[str, Any], store: str = "") -> AsyncIterator[Deployment]:
    """Apply the manifests into a new namespace with the restricted standard, which is removed afterwards.

    Without a store's address the Secret that names it is missing, and the servers' Pods wait for it.
    """
    client = AsyncClient(config=KubeConfig.from_file(settings["kubeconfig"]), trust_env=False)
    try:
        await client.create(Namespace(metadata=ObjectMeta(name=NAMESPACE, labels=_RESTRICTED)))
        if store:
            metadata = ObjectMeta(name="hutch-store", namespace=NAMESPACE)
            await client.create(Secret(metadata=metadata, stringData={"url": store}))
        deployment = Deployment(client, settings)
        await deployment.apply()
        yield deployment
    finally:
        await client.delete(Namespace, NAMESPACE)
        await _wait_until_gone(client)
        await client.close()


@asynccontextmanager
async def reachable(database: str, host: str) -> AsyncIterator[str]:
    """Carry connections from a port of this machine to a database's Unix socket, and yield the address for Pods."""
    facts = conninfo_to_dict(database)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(f"{facts['host']}/.s.PGSQL.5432")
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

    server = await asyncio.start_server(carry, host, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"postgresql://{facts['user']}@{host}:{port}/{facts['dbname']}"
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def _wait_until_gone(client: AsyncClient) -> None:
    async with asyncio.timeout(120):
        while True:
            try:
                await client.get(Namespace, NAMESPACE)
            except ApiError as error:
                if error.status.code == 404:
                    return
                raise
            await asyncio.sleep(1)
