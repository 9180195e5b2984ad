#!/bin/sh
# Builds every examples/*.cu into target/examples-cuda/, without an installed CUDA toolkit.
#
# If an nvcc of CUDA 12 or later is on PATH, it is used. If there is no such nvcc, the script installs one from PyPI
# (about 420 MB, under NVIDIA's licence) into target/cuda-toolkit/, once. The build needs no GPU.
#
#     examples/build-cuda.sh            libcudart as a shared library, as nvcc users need for LD_PRELOAD tools
#     examples/build-cuda.sh --static   libcudart inside the program (nvcc's own default): NAME-static
#
# If a program is up to date, it is not rebuilt. The script prints only the programs that it built, and one line per
# error.
set -eu

packages="nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-cupti==13.0.85"

say() { echo "build-cuda: $*" >&2; }
fail() { say "$@"; exit 1; }

cudart=shared suffix=
case "${1:-}" in
    '') ;;
    --static) cudart=static suffix=-static ;;
    *) fail "unknown argument $1; usage: examples/build-cuda.sh [--static]" ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../target}
mkdir -p "$target/examples-cuda" || fail "cannot make $target/examples-cuda; set CARGO_TARGET_DIR to a writable folder"
target=$(cd "$target" && pwd)
out=$target/examples-cuda
toolkit=$target/cuda-toolkit

# Two builds at the same time would write the same files, so the second build waits.
if command -v flock >/dev/null; then
    exec 9>"$out/.lock"
    flock 9
fi

# Major version of the nvcc on PATH, or 0.
system_nvcc() {
    command -v nvcc >/dev/null || { echo 0; return; }
    nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p' | grep . || echo 0
}

# The stamp file is written last, and lists the installed packages. If the stamp file is missing or lists other
# packages, the toolkit is installed again.
install_toolkit() {
    [ "$(cat "$toolkit/stamp" 2>/dev/null)" = "$packages" ] && return
    rm -rf "$toolkit"
    log=$out/toolkit.log
    python3 -m venv "$toolkit" >"$log" 2>&1 ||
        fail "python3 cannot make a virtual environment (Debian: apt-get install python3-venv); see $log"
    # shellcheck disable=SC2086 # a list of words
    "$toolkit/bin/pip" install --quiet $packages >"$log" 2>&1 ||
        fail "cannot install nvcc from PyPI: $(grep -m1 ERROR "$log" || echo "see $log")"
    for lib in "$toolkit"/lib/python3*/site-packages/nvidia/cu13/lib/libcudart.so.13; do
        ln -sf libcudart.so.13 "${lib%.13}" # the wheel lacks the name that -lcudart looks for
    done
    echo "$packages" >"$toolkit/stamp"
}

# The programs contain machine code for Hopper, PTX for later GPUs, and PTX for compute_75 (the oldest architecture that
# CUDA 13 supports) for earlier GPUs.
set -- -g -O2 -lineinfo -Xcompiler -Wall,-Wextra -cudart $cudart \
    -gencode arch=compute_75,code=compute_75 -gencode 'arch=compute_90,code=[sm_90,compute_90]'

if [ "$(system_nvcc)" -ge 12 ]; then
    nvcc=nvcc
else
    install_toolkit
    cuda=$(echo "$toolkit"/lib/python3*/site-packages/nvidia/cu13)
    nvcc=$cuda/bin/nvcc
    # The compiled program finds its libcudart by the run path. With --enable-new-dtags, LD_LIBRARY_PATH has precedence
    # over the run path. The run path is passed in the environment, because nvcc splits options at spaces.
    export LD_RUN_PATH="$cuda/lib"
    set -- "$@" "-L$cuda/lib" -Xlinker --enable-new-dtags
fi

# Succeeds if the program $1 must be rebuilt, because it is older than its source $2, a header or this script.
stale() {
    [ -x "$1" ] || return 0
    for input in "$2" "$here"/*.h "$here"/*/*.h "$here/build-cuda.sh"; do
        [ "$input" -nt "$1" ] && return 0
    done
    return 1
}

failed=0
for source in "$here"/*.cu; do
    name=$(basename "$source" .cu)
    program=$out/$name$suffix
    stale "$program" "$source" || continue
    log=$program.log
    if "$nvcc" "$@" "$source" -o "$program.new" >"$log" 2>&1; then
        mv "$program.new" "$program"
        echo "$program"
    else
        rm -f "$program.new"
        reason=$(grep -m1 -i error "$log" | sed "s|^$here/|examples/|" | grep .) ||
            reason="examples/$name.cu: nvcc failed: $(tail -n 1 "$log")"
        say "$reason; the rest is in $log"
        failed=1
    fi
done
exit $failed
