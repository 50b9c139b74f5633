#!/usr/bin/env bash
# Set up and run the quick tests; arguments go to pytest (`bash scripts/test.sh -m slow` runs the long ones).
set -euo pipefail
. "$(dirname "$0")/setup.sh"
case " $* " in
    *" -m "*) exec "$PYTHON" -m pytest "$@" ;;
    *) exec "$PYTHON" -m pytest -m "not slow" "$@" ;;
esac
