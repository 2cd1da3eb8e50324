"""`hutch run` from a cold shell: what it loads is most of what it takes, so what it loads is watched."""

import os
import subprocess
import sys

from hutch.linux.cgroups import detect
from tests.cli.cli_process import TIMEOUT, hutch

HEAVY = frozenset({
    # OpenSSL, and what leads to it.
    "_hashlib", "_ssl", "hashlib", "hmac", "random", "secrets", "ssl",
    # Archives, databases, code that is compiled at import, and what others bring along.
    "bz2", "dataclasses", "difflib", "gettext", "ipaddress", "locale", "lzma", "platform", "shutil", "sqlite3",
    "tarfile", "tempfile", "typing_extensions", "urllib.parse", "yaml", "msgspec.inspect",
})  # fmt: skip
OTHERS_NEED = frozenset({
    "hutch.api", "hutch.client", "hutch.guest.files.trees", "hutch.images.store",
    "hutch.keeper.access.beside_lease", "hutch.keeper.access.files", "hutch.keeper.access.scopes",
    "hutch.keeper.archives.export",
    "hutch.keeper.questions", "hutch.keeper.receipts.chain", "hutch.keeper.receipts.ledger",
    "hutch.keeper.receipts.queue", "hutch.keeper.skills.builds", "hutch.keeper.owner_view",
    "hutch.keeper.store.sqlite", "hutch.model.status", "hutch.policy.permissions",
    "hutch.providers.guest_client.local_trees", "hutch.providers.native.rootfs.prepared", "hutch.server",
    "hutch.skills.store",
})  # fmt: skip
"""Of ours: other commands, and programs that do more with a box than to run a command."""
WATCHDOGS = frozenset({
    "dataclasses", "hutch.providers.native.watch.memory", "hutch.providers.native.watch.cpu",
    "hutch.providers.native.watch.disk",
    # What dataclasses loads, and asyncio would.
    "ast", "dis", "inspect", "linecache", "textwrap", "tokenize", "traceback",
})  # fmt: skip
ENVIRONMENT = ("PATH", "HOME", "PYTHONPATH", "HUTCH_STATE_DIR", "HUTCH_RUN_DIR")
PROGRAM = """
import sys
from hutch.cli import main
code = main.command(["run", "--", "true"])
print(code, *sorted(sys.modules))
"""


def test_a_plain_run_loads_nothing_heavy() -> None:
    """From a cold shell in the blink of an eye. Each of these was on the way once, for milliseconds."""
    hutch("run", "--", "true")  # the first on a machine makes what later ones find
    # Of a cold shell: any other HUTCH_ variable is looked at more closely, and with more.
    cold = {name: value for name in ENVIRONMENT if (value := os.environ.get(name))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=TIMEOUT, env=cold)
    code, *loaded = done.stdout.split()
    assert (code, done.stderr) == ("0", "")
    assert "hutch.keeper.keeper" in loaded and "hutch.providers.native.instance" in loaded
    groups = detect()
    unwatched = groups.memory and groups.cpu
    spared = HEAVY | OTHERS_NEED | WATCHDOGS if unwatched else (HEAVY | OTHERS_NEED) - WATCHDOGS
    assert sorted(spared.intersection(loaded)) == []
