#!/usr/bin/env bash
# Builds the kit's programs on a machine without a GPU. Copy the programs to a machine that has a GPU but may have no
# compiler. If nvcc is not on PATH, the script installs it from PyPI, see examples/build-cuda.sh. The driver on the
# GPU's machine must support nvcc's CUDA version: 580 or later for CUDA 13.
#
#   tests/gpu/prebuild.sh [FOLDER]      default target/gpu-kit, where run.sh looks
#
# Exit codes: 0 all programs were built; 1 some were not, and a line on stderr states the reason; 2 wrong usage.
set -uo pipefail

case ${1:-} in -*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
KIT_HERE=$(cd "$(dirname "$0")" && pwd)
KIT_ROOT=$(cd "$KIT_HERE/../.." && pwd)
target=${CARGO_TARGET_DIR:-$KIT_ROOT/target}
out=${1:-$target/gpu-kit}
mkdir -p "$out" || exit 2
# shellcheck source=/dev/null
. "$KIT_HERE/compile.sh"

if ! command -v nvcc >/dev/null; then
    "$KIT_ROOT/examples/build-cuda.sh" >/dev/null || exit 1
    for folder in "$target"/cuda-toolkit/lib/python3*/site-packages/nvidia/cu13; do
        PATH=$folder/bin:$PATH LIBRARY_PATH=$folder/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
    done
    export LIBRARY_PATH
fi

failed=0
make() { # NAME COMMAND..
    local name=$1
    shift
    if "$@" "$out/$name.new" >"$out/$name.log" 2>&1; then
        mv "$out/$name.new" "$out/$name"
        rm -f "$out/$name.log"
        echo "$out/$name"
    else
        rm -f "$out/$name.new"
        echo "prebuild.sh: $name: $(reason "$out/$name.log"); the rest is in $out/$name.log" >&2
        failed=1
    fi
}

make probe.so probe
make driver driver
while read -r name _ source; do
    make "$name" cuda_elsewhere "$source"
done < <(cuda_programs)
exit $failed
