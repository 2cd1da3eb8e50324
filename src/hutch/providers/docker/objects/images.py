"""Images in the engine's own store: finding them, pulling them with the caller's credentials, and reading them."""

import asyncio
import base64
import json
import os
import posixpath
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hutch.errors import EngineError, Invalid, NotFound, Unsupported
from hutch.logs import log
from hutch.model.images import ImageDefaults
from hutch.providers.docker.container_spec import ImageFacts
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.http import EngineRefused
from hutch.providers.docker.settings import Pull

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
HUB = "https://index.docker.io/v1/"
_NAME = re.compile(r"\w[\w.-]*(?::\d+)?(?:/\w[\w.-]*)*", re.ASCII)
_TAGGED = re.compile(rf"{_NAME.pattern}(?::\w[\w.-]*)?", re.ASCII)
_MISSING = re.compile(r"not found|manifest unknown|access denied|unauthorized|no such image|does not exist", re.I)

Progress = Callable[[str, Mapping[str, Any]], None]


class Reference(NamedTuple):
    """An image's `name[:tag|@digest]` in the two parts that the engine wants."""

    name: str
    tag: str

    def __str__(self) -> str:
        return f"{self.name}@{self.tag}" if ":" in self.tag else f"{self.name}:{self.tag}"

    @property
    def registry(self) -> str:
        first = self.name.partition("/")[0]
        is_host = "/" in self.name and ("." in first or ":" in first or first == "localhost")
        return first if is_host else HUB


def parse(image: str) -> Reference:
    """Parse `oci:REF` or a plain reference."""
    text = image.removeprefix("oci:")
    if image in ("", "host", "oci:"):
        raise Invalid(
            "containers need an image, and none was named",
            op="create",
            remedy='give image="oci:debian:12", or set it in [providers.docker] as image = "debian:12"',
        )
    name, at, digest = text.partition("@")
    if at and _TAGGED.fullmatch(name) and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        return Reference(name, digest)
    path, _, tag = text.rpartition(":")
    if not path or "/" in tag:
        path, tag = text, "latest"
    # The name becomes a part of the engine's URL paths, so no part of it may be empty or lead upwards.
    if at or not _NAME.fullmatch(path) or not re.fullmatch(r"\w[\w.-]{0,127}", tag, re.ASCII):
        raise Invalid(f"{image!r} is no reference of an image", op="create", remedy="such as oci:debian:12")
    return Reference(path, tag)


class Images:
    """The images of one engine. Two boxes that need the same image wait for one pull."""

    def __init__(self, engine: Engine, policy: Pull, progress: Progress | None = None) -> None:
        self._engine = engine
        self._policy = policy
        self._progress = progress or _logged
        self._pulls: dict[Reference, asyncio.Task[None]] = {}

    async def ensure(self, image: str) -> ImageFacts:
        """Return an image's facts. Raises NotFound if nobody has it, Unsupported if it is for another machine."""
        if image.partition(":")[0] in ("dir", "tar"):
            raise Unsupported(f"containers are made of images, not of {image!r}", op="create", remedy="use oci:REF")
        reference = parse(image)
        found = await self._engine.image(str(reference))
        if self._policy is Pull.ALWAYS or (found is None and self._policy is Pull.MISSING):
            await self._pull_once(reference)
            found = await self._engine.image(str(reference))
        if found is None:
            raise NotFound(
                f"the engine has no image {reference}",
                op="create",
                remedy=f'pull it, or set pull = "missing" (now {self._policy}) in the provider\'s settings',
            )
        return facts(found, str(reference))

    async def needs_pull(self, image: str) -> bool:
        return self._policy is not Pull.NEVER and await self._engine.image(str(parse(image))) is None

    async def _pull_once(self, reference: Reference) -> None:
        task = self._pulls.get(reference)
        if task is None:
            task = self._pulls[reference] = asyncio.create_task(self._pull(reference))
            task.add_done_callback(lambda _: self._pulls.pop(reference, None))
        # The pull is shielded, so that a caller who gives up does not cancel it for the others.
        await asyncio.shield(task)

    async def _pull(self, reference: Reference) -> None:
        auth = await asyncio.to_thread(credentials, reference.registry)
        self._progress(str(reference), {"status": "pulling"})
        try:
            async for line in self._engine.pull(reference.name, reference.tag, auth):
                if "error" in line:
                    raise _failure(reference, str(line["error"]))
                self._progress(str(reference), line)
        except EngineRefused as refused:
            raise _failure(reference, refused.message) from refused


def facts(found: Mapping[str, Any], name: str) -> ImageFacts:
    wanted = ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    has = str(found.get("Architecture") or wanted)
    if has != wanted or str(found.get("Os") or "linux") != "linux":
        raise Unsupported(
            f"image {name} is for {found.get('Os')}/{has}, and our guest for linux/{wanted}",
            op="create",
            remedy=f"use an image for linux/{wanted}",
        )
    config = found.get("Config") or {}
    pairs = (entry.partition("=") for entry in config.get("Env") or ())
    user = str(config.get("User") or "")
    numbers = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", user)
    return ImageFacts(
        id=str(found["Id"]),
        defaults=ImageDefaults(
            env={key: value for key, _, value in pairs if key},
            workdir=str(config.get("WorkingDir") or ""),
            entrypoint=tuple(config.get("Entrypoint") or ()),
            cmd=tuple(config.get("Cmd") or ()),
        ),
        volumes=tuple(sorted({posixpath.normpath(f"/{path.lstrip('/')}") for path in config.get("Volumes") or ()})),
        user=f"{numbers[1]}:{numbers[2] or numbers[1]}" if numbers else "",
    )


def credentials(registry: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the login header from what `docker login` has stored, or "" if there is nothing. Blocks."""
    home = environment.get("DOCKER_CONFIG") or os.path.join(environment.get("HOME") or "/", ".docker")
    try:
        config = json.loads(Path(home, "config.json").read_text())
    except (OSError, ValueError):
        return ""
    helper = (config.get("credHelpers") or {}).get(registry) or config.get("credsStore")
    login = _asked(helper, registry) if helper else _read_identity(config.get("auths") or {}, registry)
    if not login:
        return ""
    return base64.urlsafe_b64encode(json.dumps({**login, "serveraddress": registry}).encode()).decode()


def _read_identity(auths: Mapping[str, Any], registry: str) -> dict[str, str]:
    entry = auths.get(registry) or auths.get(f"https://{registry}") or {}
    if entry.get("identitytoken"):
        return {"identitytoken": str(entry["identitytoken"])}
    try:
        name, _, password = base64.b64decode(entry.get("auth") or "").decode().partition(":")
    except ValueError:
        return {}
    return {"username": name, "password": password} if name else {}


def _asked(helper: str, registry: str) -> dict[str, str]:
    program = f"docker-credential-{helper}"
    try:
        asked = subprocess.run([program, "get"], input=registry, capture_output=True, text=True, timeout=20)
        found = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log("docker").warning("no credentials", program=program, error=str(error))
        return {}
    if found.get("Username") == "<token>":
        return {"identitytoken": str(found.get("Secret"))}
    return {"username": str(found.get("Username") or ""), "password": str(found.get("Secret") or "")}


def _failure(reference: Reference, message: str) -> NotFound | EngineError:
    if _MISSING.search(message):
        return NotFound(
            f"there is no image {reference}: {message}",
            op="create",
            remedy="check the name; if it needs a login, log in with the engine's own command",
        )
    return EngineError(f"image {reference} could not be pulled: {message}", op="create", details={"step": "pull"})


def _logged(image: str, news: Mapping[str, Any]) -> None:
    if "progressDetail" not in news or news.get("status") in ("Pull complete", "Download complete"):
        log("docker").info("image", image=image, status=str(news.get("status", "")), layer=str(news.get("id", "")))
