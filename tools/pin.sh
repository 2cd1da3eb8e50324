#!/usr/bin/env bash
# Renew tools/constraints.txt: the newest releases that pyproject.toml allows, as an environment made now gets them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"${HUTCH_PYTHON:-/usr/bin/python3}" -m venv "$fresh"
pip=("$fresh/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet -e '.[dev]' </dev/null
{
  echo "# What the development environment is made of, to the exact release: tools/setup.sh installs these, so that a new"
  echo "# release of a linter or a type stub does not turn a fresh clone red. pyproject.toml says what Hutch itself needs."
  echo "# Renewed by \`make pin\`; run \`make test\` before you commit it."
  "${pip[@]}" list --format=freeze --exclude hutch --exclude pip --exclude setuptools
} >"$fresh/constraints.txt"
cp "$fresh/constraints.txt" tools/constraints.txt
