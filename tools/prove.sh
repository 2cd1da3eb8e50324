#!/usr/bin/env bash
# Run the tests marked `proof`, with the full counts that `make test` has no time for. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# They may take long by design, so no clock ends them.
export HUTCH_PROVE=1 PYTHONHASHSEED=0
exec .venv/bin/python tools/leftovers.py .venv/bin/python -m pytest -p no:xdist -m proof --timeout=0 -o faulthandler_timeout=0 "$@"
