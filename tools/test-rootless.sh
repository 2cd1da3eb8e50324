#!/usr/bin/env bash
# Run the tests as an ordinary user. Root first drops to uid HUTCH_TEST_UID (65534 unless set) in a copy of the tree.
#
# --brief keeps to the tests whose outcome depends on who runs them; --prove runs the proofs (tools/prove.sh) and brings
# their records back. Other arguments go to tools/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

brief=0
if [[ ${1-} == --brief ]]; then
  brief=1
  shift
  set -- "$@" tests/conformance/test_native.py tests/linux tests/providers/native tests/layers \
    tests/images/test_{boxes,unpack,tar_entries}.py \
    tests/cli/test_{box,options,poor_machines,prune,run,signals,start,terminals,volume}.py \
    tests/security/test_{bombs,descriptors,files_attacks,host_files,hostile_guest,image_attacks,kernel_attacks}.py \
    tests/security/test_{kernels,lingering,network_attacks,planted_files,process_attacks,socket_attacks,state_privacy}.py \
    tests/e2e/test_agent_walk.py tests/skills/test_{boxes,permissions}.py tests/test_{sync,upgrade}.py
fi

run=tools/test.sh
if [[ ${1-} == --prove ]]; then
  run=tools/prove.sh
  shift
fi

if ((EUID != 0)); then
  ((brief)) && { echo "rootless: the tests above ran as an ordinary user already"; exit 0; }
  exec .venv/bin/python tools/leftovers.py "$run" "$@"
fi

uid=${HUTCH_TEST_UID:-65534}
((uid != 0)) || { echo "rootless: HUTCH_TEST_UID must not be 0" >&2; exit 2; }

# The clone may lie where that user cannot look (/root, a 0700 directory), so it gets a tree of its own. /tmp and
# not TMPDIR for the same reason.
home=$(mktemp -d /tmp/hutch-rootless.XXXXXX)
# Not if a mount was left there: rm would follow it into the host's own files.
trap 'grep -qF " $home/" /proc/self/mountinfo || rm -rf --one-file-system "$home"' EXIT
mkdir "$home/tmp" "$home/tree"
tar --create --exclude-vcs --exclude='./.venv-*' --exclude='./.*_cache' --exclude=node_modules --exclude=__pycache__ . |
  tar --extract --directory="$home/tree"

# The copied .venv works by itself, since Python finds it beside its own path; only the written-out paths of the
# clone must change: the shebangs, and the .pth file of the editable install.
clone=$(pwd -P)
find "$home/tree/.venv/bin" "$home/tree/.venv/lib" \( -path '*/bin/*' -o -name '*.pth' \) -type f -print0 |
  xargs -0 grep -lIZF "$clone/" | xargs -0 --no-run-if-empty sed -i "s|$clone/|$home/tree/|g"
chown -R "$uid:$uid" "$home"
chmod 0755 "$home"

# Boxes with a network need a tun device that ordinary users may open, as desktop distributions have it. These tests get
# one in a mount namespace of their own: the machine's stays as it is.
open_tun='if mount -t tmpfs -o mode=0755,size=64k tun /dev/net && mknod /dev/net/tun c 10 200; then chmod 0666 /dev/net/tun
else echo "rootless: no tun device of our own: tests of boxes with a network will be skipped"; fi; exec "$@"'
private=()
[[ -e /dev/net/tun ]] && private=(unshare --mount --propagation private sh -c "$open_tun" sh)

commit=
if [[ $run == tools/prove.sh ]]; then
  commit=$(git rev-parse HEAD)
  [[ -z $(git status --porcelain -- . ':!proof') ]] || commit="$commit with changes"
fi
touch "$home/started"
code=0

echo "rootless: as uid $uid in a copy of the tree"
cd "$home/tree"
"${private[@]}" setpriv --reuid="$uid" --regid="$uid" --clear-groups --inh-caps=-all \
  env -i CI="${CI-}" HOME="$home" TMPDIR="$home/tmp" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 \
  HUTCH_PROOF_COMMIT="$commit" .venv/bin/python tools/leftovers.py "$run" "$@" || code=$?
[[ $run != tools/prove.sh ]] || find proof -type f -name '*-rootless.json' -newer "$home/started" -exec cp {} "$clone/proof/" \;
exit "$code"
