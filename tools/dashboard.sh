#!/usr/bin/env bash
# Build the dashboard into the package, if its source has changed since. Needs Node 20.19 or newer, and npm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

built=src/hutch/server/dashboard/static
stamp=dashboard/node_modules/.hutch-built

fingerprint() {
  {
    node --version
    find dashboard -name node_modules -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
  } | sha256sum | cut -d' ' -f1
}

if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
  echo "dashboard: not built, because Node is missing; a plain page says so in its place" >&2
  exit 0
fi
if ! node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)'; then
  echo "dashboard: not built, because Node $(node --version) is older than 20.19" >&2
  exit 0
fi
made_from=$(fingerprint)
[[ -f $built/index.html && -f $stamp && $(<"$stamp") == "$made_from" ]] && exit 0

packages() {
  local try
  for try in 1 2 3; do
    (cd dashboard && npm ci --silent --no-audit --no-fund </dev/null) && return 0
    ((try < 3)) && sleep $((try * 5))
  done
  return 1
}

echo "dashboard: building it with Node $(node --version)"
if ! packages; then
  echo "dashboard: not built, because npm could not install its packages, in three tries" >&2
  exit 0
fi
(cd dashboard && npm run --silent build -- --logLevel error </dev/null)
chmod -R a+rX "$built"
echo "$made_from" >"$stamp"
