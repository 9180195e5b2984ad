#!/usr/bin/env bash
# Prints a table of what LD_PRELOAD in a shell costs each program that the shell starts, in microseconds. For
# comparison, the table has the cost of loading an empty library.
#
#   cargo build --release && tests/bench/exec.sh [--limit US] [TIMES]
#
# Exits with status 1 if libgpuflame-preload.so, the small library made for preloading, adds more than US microseconds.
set -euo pipefail
cd "$(dirname "$0")/../.."
limit=
if [[ ${1-} == --limit ]]; then
    limit=$2
    shift 2
fi
target=${CARGO_TARGET_DIR:-$PWD/target}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
gcc -O2 -std=gnu99 tests/bench/exec/exec.c -o "$folder/exec"
# Like libgpuflame-preload.so, the empty library has two segments, one of them writable.
echo 'int nothing = 1;' | gcc -O2 -shared -nostdlib -Wl,-z,norelro -Wl,-z,noseparate-code -x c - -o "$folder/empty.so"
for library in libgpuflame-preload.so libgpuflame.so; do cp "$target/release/$library" "$folder/"; done

echo "| LD_PRELOAD | us | more |"
echo "| --- | ---: | ---: |"
names=(nothing "an empty library" libgpuflame-preload.so libgpuflame.so)
at=0
result=0
measured=$("$folder/exec" "${1:-3000}" "$folder/empty.so" "$folder/libgpuflame-preload.so" "$folder/libgpuflame.so")
while read -r all more; do
    name=${names[at]}
    echo "| $name | $all | $more |"
    at=$((at + 1))
    if [[ -n $limit && $name == libgpuflame-preload.so ]] && awk "BEGIN { exit !($more > $limit) }"; then
        echo "$name: $more us more, beyond $limit" >&2
        result=1
    fi
done <<<"$measured"
exit $result
