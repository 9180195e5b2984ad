#!/usr/bin/env bash
# Measures every unwinder on the stacks of a real program, PyTorch on the CPU. Run this script by hand. On its first
# run, the script downloads about 3 GB.
#
#     tests/bench/pytorch/run.sh [PYTHON]     # a Python that has torch; without it, one is made in the target folder
set -euo pipefail
cd "$(dirname "$0")/../../.."
target=${CARGO_TARGET_DIR:-target}
python=${1:-$target/pytorch/bin/python}
if ! [ -x "$python" ]; then
    python3 -m venv "$target/pytorch"
    "$python" -m pip install -q torch
fi
cargo build --release -p gpuflame-recorder --example pytorch_hook
hook=$(realpath "$target/release/examples/libpytorch_hook.so")
for run in "decode 40" "train 20"; do
    echo
    echo "PyTorch $("$python" -W ignore -c 'import torch; print(torch.__version__)' 2>/dev/null), $run:"
    # shellcheck disable=SC2086
    LD_PRELOAD=$hook "$python" -W ignore tests/bench/pytorch/workload.py $run
done
