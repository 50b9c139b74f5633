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

# Linux wheels of torch on the default index bring gigabytes of CUDA packages; the CPU build is a version of its
# own (2.13.0+cpu). A torch that is in .venv already stays: that is how to use a GPU.
install_torch() {
    local build
    if [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ] || "$PYTHON" -m pip show --quiet torch 2>/dev/null; then
        return
    fi
    build=$(grep '^torch==' constraints.txt)+cpu
    if "$PYTHON" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$build" 2>/dev/null; then
        return
    fi
    if "$PYTHON" -m pip install --quiet --disable-pip-version-check -c constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/cpu "$build"; then
        return
    fi
    echo "No CPU build of torch ($build) was found for $("$PYTHON" --version). Either use Python 3.11" >&2
    echo "(ENGINE_PYTHON=python3.11, after removing .venv), or install a torch of your choice and run this again:" >&2
    echo "    $PYTHON -m pip install ${build%+cpu}    # with CUDA, some gigabytes" >&2
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
    install_torch
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
