#!/usr/bin/env bash
# Everything that can be told without running a box. Runs all checks, then fails if any did.
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

((${#failed[@]} == 0)) && exit 0
printf 'check: FAILED: %s\n' "${failed[@]}" >&2
exit 1
