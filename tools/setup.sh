#!/usr/bin/env bash
# Make a clone ready to work in: the system packages that the tests use, .venv, and the built dashboard. Safe to run
# again at any time.
# With --python it installs no system package, and makes .venv only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Debian's own interpreter: every user may read it, which the rootless tests and the boxes rely on.
# The first python3 on PATH may lie in a home directory that other users cannot enter.
python="${HUTCH_PYTHON:-/usr/bin/python3}"
packages=(
  python3-venv        # .venv
  gcc libc6-dev       # the attack programs of tests/security
  util-linux          # setpriv, unshare, nsenter
  iproute2 nftables   # boxes with network, as root
  passt               # boxes with network, rootless
  bubblewrap          # a peer to measure beside, and what the sample provider makes boxes with
  postgresql          # the store that several machines share; the tests start a server of their own
  file git procps python3-pip adduser  # what commands in the tests call
  zsh fish            # shells that read their completion scripts
  docker-registry     # images: the tests start one of their own, on loopback
  apache2-utils       # htpasswd, for a registry that asks who comes
  busybox-static      # the smallest image that can do something
  debootstrap         # a real distribution's image, in `make prove`
  chromium            # the browser that tries to drive a local server, and that drives the dashboard
  fonts-wqy-zenhei    # the dashboard in Chinese, in pictures
  nodejs              # the dashboard's build; MCP: the Inspector, and servers from the registry
  docker.io runc crun             # containers: the tests start engines of their own
  podman containernetworking-plugins
  runsc                           # gVisor, as a runtime of Docker
  systemd                         # systemd-analyze checks the unit in deploy/; nothing of it runs
  curl                            # asking an engine whether it is up
)
# Some builds of nodejs bring their own npm, beside which Debian's cannot be installed.
command -v npm >/dev/null || packages+=(npm)

missing_packages() {
  local name
  for name in "${packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || echo "$name"
  done
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  # A package's service would start here and now, and Docker's changes the machine's firewall when it does.
  # invoke-rc.d asks this file first (101: do not start anything).
  local policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  local apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  # A fresh machine has no package lists, and old lists name versions that the mirror has dropped.
  "${apt[@]}" update || echo "setup: apt-get update failed; trying with the lists that are there" >&2
  "${apt[@]}" install -y --no-install-recommends "$@" </dev/null
}

system_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "setup: not a Debian system; the tests need your distribution's form of: ${packages[*]}"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  if ((EUID == 0)); then
    echo "setup: installing ${missing[*]}"
    install_packages "${missing[@]}" || echo "setup: apt-get failed" >&2
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]})) || return 0
  fi
  echo "setup: MISSING packages: ${missing[*]}" >&2
  echo "setup: tests that need them will skip and say so. To install: sudo apt-get install ${missing[*]}" >&2
}

# What .venv was made from. The path is part of it: a virtual environment does not survive a move.
fingerprint() {
  { pwd -P; "$python" -VV; sha256sum pyproject.toml tools/setup.sh tools/constraints.txt; } | sha256sum | cut -d' ' -f1
}

virtual_environment() {
  local stamp=.venv/.hutch-setup made_from
  made_from=$(fingerprint)
  [[ -f $stamp && $(<"$stamp") == "$made_from" ]] && .venv/bin/python -c '' && return 0

  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "setup: $python is older than 3.11; name a newer one with HUTCH_PYTHON" >&2; exit 1; }
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    { echo "setup: $python cannot make virtual environments: install python3-venv" >&2; exit 1; }

  echo "setup: making .venv with $("$python" -V)"
  # Anew: an older one holds what is needed no more, and pip takes very long to find that its releases do not fit.
  "$python" -m venv --clear "$PWD/.venv"
  if ! development_packages --constraint tools/constraints.txt; then
    echo "setup: the releases of tools/constraints.txt cannot be had here; taking the newest that fit instead" >&2
    development_packages ||
      { echo "setup: pip could not install the development packages, in three tries" >&2; exit 1; }
  fi
  echo "$made_from" >"$stamp"
}

# In three tries; arguments go to pip.
development_packages() {
  local try
  for try in 1 2 3; do
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" -e '.[dev]' </dev/null && return 0
    ((try < 3)) && sleep $((try * 5))
  done
  return 1
}

# One setup at a time in a clone: the lock sits on a file that is there anyway and goes with this process.
exec 9<pyproject.toml
flock 9
[[ ${1-} == --python ]] || system_packages 9<&-
virtual_environment 9<&-
# Without Node the server shows a plain page instead, and the tests of the dashboard say that they need it.
[[ ${1-} == --python ]] || tools/dashboard.sh 9<&-
