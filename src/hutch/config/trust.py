"""The list of `hutch.toml` files in working directories that the user has accepted, each with its digest.

Code in a box can write to a host directory that is its workspace, and a `hutch.toml` there could ask for the provider
`host` or open any mount at the user's next `hutch run`. So a file in the working directory is ignored until the user
accepts it with `hutch config trust`, and again once a byte of it changes. The list is in the user's own configuration
directory, which is never shown in a box.
"""

import json
import os
import secrets
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from hutch.config import directories
from hutch.errors import ConfigError

LIST = "trusted.json"
_MOST = 1000
"""Most entries; the oldest are dropped."""


def is_trusted(path: Path, content: bytes, environ: Mapping[str, str]) -> bool:
    return _read(environ).get(os.path.realpath(path)) == _digest(content)


def trust(path: Path, content: bytes, environ: Mapping[str, str]) -> None:
    """Accept this content at this path as the user's own."""
    trusted = _read(environ)
    trusted.pop(os.path.realpath(path), None)
    trusted[os.path.realpath(path)] = _digest(content)
    _write(dict(list(trusted.items())[-_MOST:]), environ)


def forget(path: Path, environ: Mapping[str, str]) -> bool:
    """Drop an entry; return whether there was one."""
    trusted = _read(environ)
    if trusted.pop(os.path.realpath(path), None) is None:
        return False
    _write(trusted, environ)
    return True


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _read(environ: Mapping[str, str]) -> dict[str, str]:
    path = directories.config_dir(environ) / LIST
    try:
        with path.open("rb") as file:
            directories.check_author(path, os.fstat(file.fileno()))
            plain = json.loads(file.read())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{path} cannot be read: {error}", remedy="remove it, and trust again what you need"
        ) from error
    return {key: value for key, value in plain.items() if isinstance(value, str)} if isinstance(plain, dict) else {}


def _write(trusted: Mapping[str, str], environ: Mapping[str, str]) -> None:
    directory = directories.config_dir(environ)
    draft = directory / f".{LIST}.{secrets.token_hex(4)}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as file:
            json.dump(trusted, file, indent=2)
        os.replace(draft, directory / LIST)
    except OSError as error:
        raise ConfigError(f"{directory / LIST} cannot be written: {error.strerror}") from error
