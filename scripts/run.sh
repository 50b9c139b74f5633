#!/usr/bin/env bash
# Set up, train CartPole-v1 with PPO until it is solved, and say what to try next.
# Arguments go to `engine run ppo/cartpole`.
set -euo pipefail
. "$(dirname "$0")/setup.sh"
exec "$PYTHON" -m engine run ppo/cartpole "$@"
