"""How npm and pip reach their registries from this machine, as the part of a spec that lets a box do the same."""

import functools
import json
import os
import shutil
import subprocess
from typing import Any

_NPM_SETTINGS = ("registry", "cafile", "proxy", "https-proxy", "noproxy")
_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "pip_index_url", "pip_extra_index_url", "pip_cert")


@functools.cache
def registry_access() -> dict[str, Any]:
    """Return the network and variables of a box whose npm and pip install packages as this user's do."""
    env = {name: value for name, value in os.environ.items() if name.lower() in _VARIABLES}
    return {"network": "on", "env": env | _npm_variables()}


def _npm_variables() -> dict[str, str]:
    """Settings of this user's npm, which a box does not see in its home; never the credentials among them."""
    if shutil.which("npm") is None:
        return {}
    found = subprocess.run(["npm", "config", "list", "--json"], capture_output=True, text=True, timeout=60, check=True)
    settings = {name: json.loads(found.stdout).get(name) for name in _NPM_SETTINGS}
    return {
        f"npm_config_{name.replace('-', '_')}": value
        for name, value in settings.items()
        if isinstance(value, str) and value
    }
