#!/usr/bin/env bash
# Installs NVIDIA's own Python binding, `cuda-bindings` from PyPI, into FOLDER, if it is not installed yet. Prints the
# Python that has it. The binding is a client of the CUDA driver's interface that does not belong to this project.
#
#   tests/third-party.sh FOLDER       prints why and exits with 75 if it cannot be installed
set -euo pipefail
version=13.0.3
folder=${1:?"usage: tests/third-party.sh FOLDER"}/cuda-bindings-$version
python=$folder/bin/python
mkdir -p "$folder"
# Tests that run at the same time wait here for a lock, so that only one of them installs.
exec 9<"$folder"
flock 9
if [ ! -e "$folder/done" ]; then
    python3 -m venv --clear "$folder" >&2
    # Only the binding is installed. The tests do not need numpy and the binding's further optional dependencies.
    "$python" -m pip install -q --disable-pip-version-check --only-binary=:all: --no-deps "cuda-bindings==$version" "cuda-pathfinder" >&2 || {
        echo "cuda-bindings $version cannot be had from PyPI" >&2
        exit 75
    }
    touch "$folder/done"
fi
echo "$python"
