#!/usr/bin/env bash
# Set up, train CartPole-v1 with PPO until it is solved, and say what to try next.
set -euo pipefail
. "$(dirname "$0")/setup.sh"
exec "$PYTHON" -m engine.cli.main demo "$@"
