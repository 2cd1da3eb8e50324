#!/usr/bin/env bash
# Run every check that needs no box, then fail if any of them failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=()
check() {
  local name=$1
  shift
  echo "check: $name"
  "$@" || failed+=("$name")
}

check "ruff check" .venv/bin/ruff check --quiet .
check "ruff format" .venv/bin/ruff format --quiet --check .
check "mypy" .venv/bin/mypy
check "import contracts" .venv/bin/lint-imports --no-logo
check "file lengths" .venv/bin/python tools/check_lengths.py
check "links" .venv/bin/python tools/check_links.py
check "requirements" .venv/bin/python tools/requirements.py --check

((${#failed[@]} == 0)) && exit 0
printf 'check: FAILED: %s\n' "${failed[@]}" >&2
exit 1
