#!/usr/bin/env bash
# Set up, then put every file into the house format and fix what can be fixed.
set -euo pipefail
. "$(dirname "$0")/setup.sh"
"$PYTHON" -m ruff format .
"$PYTHON" -m ruff check --fix .
