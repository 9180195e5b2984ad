#!/usr/bin/env bash
# Prints a table of gpuflame's cost per launch in a program whose coroutines run in turn on one thread. Each cost is CPU
# time of the launching thread in nanoseconds, measured on the simulated CUDA stack.
#
#   cargo build --release && tests/bench/coroutines.sh [--limit NS] [COUNT...]
#
# Exits with status 1 if gpuflame adds more than NS nanoseconds to a launch.
set -euo pipefail
cd "$(dirname "$0")/../.."
limit=
if [[ ${1-} == --limit ]]; then
    limit=$2
    shift 2
fi
target=${CARGO_TARGET_DIR:-$PWD/target}
library=$(realpath "$target/release/libgpuflame.so")
cuda=$(tests/gpusim/run --stage)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
gcc -O2 -g -std=gnu99 -I tests/gpusim/include tests/bench/launch/coroutines.c -o "$folder/coroutines" -L "$cuda" -lcudart -lcuda
export LD_LIBRARY_PATH=$cuda GPUFLAME_QUIET=1 GPUFLAME_FORMATS=folded GPUFLAME_OUTPUT=$folder/out-%p

# Prints the smallest result of three runs, because other load on the machine only makes a run slower.
least() {
    for _ in 1 2 3; do "$@"; done | sort -n | head -1
}

echo "| coroutines | ns a launch without gpuflame | with | more |"
echo "| ---: | ---: | ---: | ---: |"
[[ $# -gt 0 ]] || set -- 0 1 128 1000
result=0
for count in "$@"; do
    without=$(least "$folder/coroutines" "$count")
    with=$(CUDA_INJECTION64_PATH=$library least "$folder/coroutines" "$count")
    more=$((with - without))
    echo "| $count | $without | $with | $more |"
    if [[ -n $limit ]] && ((more > limit)); then
        echo "$count coroutines: $more ns more a launch, beyond $limit" >&2
        result=1
    fi
done
exit $result
