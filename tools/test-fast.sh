#!/usr/bin/env bash
# Run the tests that need nothing but Python packages and the native engine, and no more than a minute of CPU time.
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022

fast=(
  tests/policy tests/linux tests/guest tests/keeper tests/tools tests/doctor tests/cli tests/skills
  tests/providers/guest_client tests/providers/native tests/test_*.py
)
export PYTHONHASHSEED=0
# One process: each further worker would have to import everything once more.
status=0
.venv/bin/python tools/leftovers.py .venv/bin/python -m pytest -q -r fE -p no:xdist -p no:schemathesis -p no:cacheprovider \
  -m "not slow and not alone and not proof" "${fast[@]}" "$@" </dev/null || status=$?

left=()
for directory in tests/*/ tests/providers/*.py; do
  grep -qrs --include='test_*.py' . "$directory" || continue
  [[ " ${fast[*]} " == *" ${directory%/} "* || $directory == tests/providers/ ]] || left+=("${directory%/}")
done
echo "Not run here: tests marked slow, alone or proof (deselected above), and those that need other programs or more time:"
echo "  ${left[*]}" | fold -s -w 110
echo "\`make test\` runs all of them but the proofs."
exit "$status"
