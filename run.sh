#!/bin/sh
# Sets Hypnos up when that is needed, then starts it: see `./run.sh --help`. All decisions are in installers/bootstrap.py.
set -eu

here=$0
while [ -h "$here" ]; do
    target=$(readlink "$here")
    case $target in
        /*) here=$target ;;
        *) here=$(dirname "$here")/$target ;;
    esac
done
root=$(CDPATH='' cd -- "$(dirname -- "$here")" && pwd -P)

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    if ! fits "$PYTHON"; then
        echo "PYTHON is set to $PYTHON, which is not a working Python 3.11, 3.12 or 3.13." >&2
        exit 2
    fi
    python=$PYTHON
else
    python=
    for candidate in "$root/.venv/bin/python" python3.13 python3.12 python3.11 python3; do
        if fits "$candidate"; then
            python=$candidate
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "Hypnos needs Python 3.11, 3.12 or 3.13 and none was found: install one, or set PYTHON to its path." >&2
        exit 2
    fi
fi

exec "$python" -B "$root/installers/bootstrap.py" "$@"
