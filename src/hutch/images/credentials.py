"""Credentials for a registry: from the caller, the configuration, the environment, or Docker's and Podman's own files.

A secret found here is concealed at once, so that no log line and no error shows it.
"""

import base64
import binascii
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from hutch.errors import ConfigError, EngineError
from hutch.images.references import DEFAULT_REGISTRY
from hutch.images.settings import ImageSettings
from hutch.logs import conceal, log

_HELPER_TIMEOUT = 20.0
_DOCKER_HUB = "https://index.docker.io/v1/"
"""The name under which Docker's own files keep the credentials of the default registry."""


class Credentials(NamedTuple):
    """A user name with a password, or an identity token that is exchanged for access tokens."""

    username: str = ""
    password: str = ""
    identity_token: str = ""

    def basic(self) -> str:
        return base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    def __repr__(self) -> str:
        return f"Credentials({self.username!r})"


def find_credentials(
    registry: str,
    settings: ImageSettings,
    *,
    given: Credentials | None = None,
    environ: Mapping[str, str] | None = None,
) -> Credentials | None:
    """Return the first credentials found; None means anonymous access."""
    environ = os.environ if environ is None else environ
    found = (
        given
        or _from_settings(registry, settings)
        or _from_environment(registry, environ)
        or _from_files(registry, environ)
    )
    if found is not None:
        conceal([text for text in (found.password, found.identity_token) if text])
        conceal([found.basic()] if found.password else [])
    return found


def _from_settings(registry: str, settings: ImageSettings) -> Credentials | None:
    table = settings.registries.get(registry)
    if table is None or not table.username:
        return None
    password = table.password
    if table.password_file:
        try:
            with open(os.path.expanduser(table.password_file)) as file:
                password = file.read().strip()
        except OSError as error:
            raise ConfigError(
                f"the password of registry {registry} cannot be read: {error.strerror}: {table.password_file}"
            ) from error
    return Credentials(table.username, password)


def _from_environment(registry: str, environ: Mapping[str, str]) -> Credentials | None:
    """Use the environment's credentials only for the registry that HUTCH_REGISTRY names."""
    if environ.get("HUTCH_REGISTRY") != registry:
        return None
    name, password = environ.get("HUTCH_REGISTRY_USERNAME", ""), environ.get("HUTCH_REGISTRY_PASSWORD", "")
    return Credentials(name, password) if name and password else None


def _from_files(registry: str, environ: Mapping[str, str]) -> Credentials | None:
    for path in _paths(environ):
        try:
            with open(path, "rb") as file:
                plain = json.loads(file.read(1 << 20))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            log("images").warning("credentials cannot be read", path=path, error=type(error).__name__)
            continue
        if isinstance(plain, dict) and (found := _from_file(registry, plain)):
            return found
    return None


def _paths(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("HOME", "")
    paths = []
    if environ.get("REGISTRY_AUTH_FILE"):
        paths.append(environ["REGISTRY_AUTH_FILE"])
    if environ.get("XDG_RUNTIME_DIR"):
        paths.append(os.path.join(environ["XDG_RUNTIME_DIR"], "containers", "auth.json"))
    docker = environ.get("DOCKER_CONFIG") or (os.path.join(home, ".docker") if home else "")
    return [*paths, os.path.join(docker, "config.json")] if docker else paths


def _from_file(registry: str, plain: dict[str, Any]) -> Credentials | None:
    names = [registry, f"https://{registry}", f"http://{registry}", f"https://{registry}/v1/"]
    if registry == DEFAULT_REGISTRY:
        names = [_DOCKER_HUB, "index.docker.io", *names]
    helpers = plain.get("credHelpers")
    helper = helpers.get(registry) if isinstance(helpers, dict) else None
    helper = helper or plain.get("credsStore")
    auths = plain.get("auths")
    entry = next((auths[name] for name in names if isinstance(auths, dict) and name in auths), None)
    if isinstance(entry, dict) and (entry.get("auth") or entry.get("identitytoken")):
        return _of_entry(registry, entry)
    return _of_helper(str(helper), names[0]) if helper else None


def _of_entry(registry: str, entry: dict[str, Any]) -> Credentials:
    try:
        name, _, password = base64.b64decode(str(entry.get("auth") or "")).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"the stored credentials of registry {registry} cannot be read") from error
    return Credentials(name, password.rstrip("\0"), str(entry.get("identitytoken") or ""))


def _of_helper(helper: str, server: str) -> Credentials | None:
    """Run one of Docker's credential helpers: the server on its standard input, JSON on its standard output."""
    import subprocess

    if not helper.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"{helper!r} is not the name of a credential helper")
    try:
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"], input=server.encode(), capture_output=True, timeout=_HELPER_TIMEOUT
        )
    except FileNotFoundError:
        return None  # Docker Desktop writes its helper's name also on machines that have only the engine
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"docker-credential-{helper} did not answer within {_HELPER_TIMEOUT:g} s") from error
    if done.returncode != 0:
        return None  # the helper has nothing for this registry
    try:
        plain = json.loads(done.stdout)
        name, secret = str(plain["Username"]), str(plain["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"docker-credential-{helper} did not return a credential") from error
    return Credentials("", "", secret) if name == "<token>" else Credentials(name, secret)
