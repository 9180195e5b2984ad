#!/usr/bin/env bash
# Installs NVIDIA's own Python binding, `cuda-bindings` from PyPI, into FOLDER, once, and prints the Python
# that has it: a client of the driver's interface that we did not write.
#
#   tests/third-party.sh FOLDER       prints why and exits with 75 if it cannot be installed
set -euo pipefail
version=13.0.3
folder=${1:?"usage: tests/third-party.sh FOLDER"}/cuda-bindings-$version
python=$folder/bin/python
mkdir -p "$folder"
# Tests that run at the same time wait here for each other.
exec 9<"$folder"
flock 9
if [ ! -e "$folder/done" ]; then
    python3 -m venv --clear "$folder" >&2
    # Only the binding is installed; numpy and its other optional dependencies are not needed.
    "$python" -m pip install -q --disable-pip-version-check --only-binary=:all: --no-deps "cuda-bindings==$version" "cuda-pathfinder" >&2 || {
        echo "cuda-bindings $version cannot be had from PyPI" >&2
        exit 75
    }
    touch "$folder/done"
fi
echo "$python"
