#!/usr/bin/env bash
# Set up, then format check, lint and types: what the automation asks for beside the tests.
set -euo pipefail
. "$(dirname "$0")/setup.sh"
"$PYTHON" -m ruff format --check .
"$PYTHON" -m ruff check .
"$PYTHON" -m mypy
