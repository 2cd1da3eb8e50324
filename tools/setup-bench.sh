#!/usr/bin/env bash
# Install the peers that the bench measures beside: Docker, Podman, bubblewrap, gVisor. Safe to run again at any time.
# Nothing is started: the bench runs its own Docker daemon in a directory of its own, and ends it.
set -euo pipefail

declare -A package_of=(
  [dockerd]=docker.io [runc]=runc [podman]=podman [bwrap]=bubblewrap [runsc]=runsc [debootstrap]=debootstrap
)

export PATH=$PATH:/usr/sbin:/sbin
missing=()
for program in "${!package_of[@]}"; do
  command -v "$program" >/dev/null || missing+=("${package_of[$program]}")
done
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null || ((EUID != 0)); then
  echo "setup-bench: MISSING: ${missing[*]}; the bench names them as not measured." >&2
  echo "setup-bench: To install (Debian, Ubuntu): sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 0
fi

# A package's service would start here and now, and Docker's changes the machine's firewall when it does.
# invoke-rc.d asks this file first (101: do not start anything).
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
"${apt[@]}" update || echo "setup-bench: apt-get update failed; trying with the lists that are there" >&2
for name in "${missing[@]}"; do
  # One by one: a distribution that lacks one peer still gets the others.
  "${apt[@]}" install -y --no-install-recommends "$name" </dev/null ||
    echo "setup-bench: $name could not be installed; the bench names it as not measured" >&2
done
