"""The base images of E2B's templates: a Debian with the user and the programs that clients of E2B expect.

`bootstrap` makes the Debian with debootstrap. `SETUP` turns any Debian, also a pulled one, into a base image.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hutch.errors import EngineError, NotFound, Unsupported
from hutch.images.archives import import_path
from hutch.images.store import Store
from hutch.logs import log

BASE = "e2b-base"
INTERPRETER = "e2b-code-interpreter"
DESKTOP = "e2b-desktop"
PACKAGES = {
    BASE: ("bash", "ca-certificates", "curl", "git", "procps", "python3", "python3-pip", "python3-venv"),
    INTERPRETER: (
        "node-typescript", "nodejs", "python3-ipython", "python3-matplotlib", "python3-pandas", "python3-pil",
    ),
    DESKTOP: (
        "dbus-x11", "libgtk-3-bin", "net-tools", "novnc", "python3-cffi-backend", "scrot", "x11-utils",
        "x11-xserver-utils", "x11vnc", "xauth", "xdg-utils", "xdotool", "xfce4-panel", "xfce4-session", "xfdesktop4",
        "xfwm4", "xterm", "xvfb",
    ),
}  # fmt: skip
"""What each image has; the others have what the base has too. debootstrap has to be told the packages that others only
provide: python3-cffi-backend, which the server of noVNC needs."""
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
_LEFT_OUT = ("./dev/*", "./proc/*", "./sys/*", "./var/cache/apt/archives/*.deb", "./var/lib/apt/lists/*")
_SETUP = """set -e
need="{packages}"
for name in $need; do
  dpkg -s "$name" >/dev/null 2>&1 || missing="$missing $name"
done
if [ -n "$missing" ]; then
  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
  apt-get clean
fi
id user >/dev/null 2>&1 || useradd --create-home --shell /bin/bash --uid 1000 user
[ -e /usr/bin/python ] || ln -s python3 /usr/bin/python
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
chmod 755 /usr/bin/sudo /root
[ ! -d /usr/share/novnc ] || [ -e /opt/noVNC ] || ln -s /usr/share/novnc /opt/noVNC
"""
SUDO = str(Path(__file__).with_name("programs") / "sudo.py")
"""What becomes /usr/bin/sudo: the real one cannot gain rights in a box."""

Progress = Callable[[str], None]


class Distribution(NamedTuple):
    """A release of Debian and where its packages are."""

    release: str
    mirror: str


def packages(image: str) -> tuple[str, ...]:
    return PACKAGES[BASE] if image == BASE else (*PACKAGES[BASE], *PACKAGES[image])


def setup_script(image: str) -> str:
    """Return the shell script that turns a Debian into this image. It fetches only packages that are missing."""
    return _SETUP.format(packages=" ".join(packages(image)))


def this_distribution() -> Distribution:
    """Return the release of this machine and the mirror it uses, if it is a Debian; else Debian's stable release."""
    facts = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    release = facts.get("VERSION_CODENAME", "").strip('"')
    mirror = "https://deb.debian.org/debian"
    if facts.get("ID", "").strip('"') != "debian" or not (_SCRIPTS / release).exists():
        return Distribution("stable", mirror)
    listing = ["apt-get", "indextargets", "--format", "$(SITE)", f"Codename: {release}", "Component: main"]
    found = subprocess.run(listing, capture_output=True, text=True).stdout.split()
    return Distribution(release, found[0] if found else mirror)


def bootstrap(store: Store, image: str, where: Distribution, progress: Progress, *, anew: bool = False) -> str:
    """Return the name of a plain Debian with the packages of `image`, which is made unless the store has it.

    Raises:
        Unsupported: There is no debootstrap, or it may not run here.
        EngineError: It failed.
    """
    name = f"{image}-debian:{where.release}"
    if not anew:
        try:
            store.open(name)
            progress(f"Debian {where.release} (as before)")
            return name
        except NotFound:
            pass
    program = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None or os.geteuid() != 0:
        raise Unsupported(
            "debootstrap, run as root, makes the Debian of a base image, and that cannot be had here", op="image base",
            remedy="apt install debootstrap and become root, or build on an image: hutch image base --from debian:12",
        )  # fmt: skip
    store.prepare()
    with store.lock_shared(), store.work_directory() as work:
        root, packed = os.path.join(work, "root"), os.path.join(work, "root.tar")
        include = f"--include={','.join(packages(image))}"
        _run_debootstrap([program, "--variant=minbase", include, where.release, root, where.mirror], progress)
        progress("packing")
        left_out = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
        tar = ["tar", "--format=posix", "--numeric-owner", *left_out, "-C", root, "-cf", packed, "."]
        subprocess.run(tar, check=True, capture_output=True)
        progress("adding it to the images")
        import_path(store, packed, name)
    return name


def _run_debootstrap(command: list[str], progress: Progress) -> None:
    """Run it and report each of its steps: it says `I: Retrieving NAME VERSION` and the like."""
    log("images").info("debootstrap", command=command)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        last: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-9:], line.strip()]
            progress(line.strip().removeprefix("I: "))
    if process.returncode != 0:
        raise EngineError(
            f"debootstrap failed: {' '.join(last)[-600:]}", op="image base",
            remedy="check that this machine reaches the mirror, or name another with --mirror",
        )  # fmt: skip
