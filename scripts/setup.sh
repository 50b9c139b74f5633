# Sourced by run.sh and test.sh: make .venv if it is missing or out of date, and name its python $PYTHON.
# Safe to run twice at once: one waits for the other.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local candidate
    for candidate in "${ENGINE_PYTHON:-}" python3.11 python3.12 python3 python; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.11 or 3.12 was found. Install one (for example: apt install python3.11 python3.11-venv)," >&2
    echo "or name it: ENGINE_PYTHON=/path/to/python3.11 bash scripts/test.sh" >&2
    return 1
}

set_up() {
    local stamp wanted base
    stamp=.venv/installed
    wanted=$(cat setup.py pyproject.toml constraints.txt | cksum)
    PYTHON=$PWD/.venv/bin/python
    if [ -x "$PYTHON" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    base=$(find_python)
    if [ ! -x "$PYTHON" ]; then
        echo "Making .venv with $("$base" --version) ..." >&2
        rm -rf .venv
        "$base" -m venv .venv
    fi
    echo "Installing the packages; torch is large, the first time takes a minute or two ..." >&2
    "$PYTHON" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
    echo "$wanted" >"$stamp"
}

if command -v flock >/dev/null; then
    exec 9>.venv.lock
    flock 9
    set_up
    exec 9>&-
else
    set_up
fi
