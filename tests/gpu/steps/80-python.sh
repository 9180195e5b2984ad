# Right: PyTorch eager, as a CUDA graph and compiled; JAX; CuPy
# LIMIT 300
# Each program runs once under gpuflame and once under its witness: torch.profiler for PyTorch, the probe for
# all. Counts must be equal; where a library tunes itself at run time, they say how it differs.

need_gpuflame
[ "$KIT_SIMULATED" = 0 ] || skip "PyTorch, JAX and CuPy need a real CUDA stack"
command -v python3 >/dev/null || skip "python3"
within=100
tell() { python "$KIT_HERE/check.py" "$@" >>"$facts"; }
export TORCHINDUCTOR_CACHE_DIR=$KIT_STEP/inductor TRITON_CACHE_DIR=$KIT_STEP/triton
iterations=$(quick 20 3)

for mode in eager graph compile; do
    runs=$KIT_STEP/torch_$mode
    program=(python3 "$KIT_HERE/programs/model.py" --mode "$mode" --iterations "$iterations")
    if [ $mode = compile ]; then # fills the caches, so that no later run compiles or tunes
        plainly "$runs/first" "${program[@]}" || { missing "torch.compile: $(tail -n 1 "$runs/first/stderr")"; continue; }
    fi
    under_gpuflame "$runs/gpuflame" "${program[@]}"
    rc=$?
    [ $rc = 75 ] && { missing "PyTorch: $(tail -n 1 "$runs/gpuflame/stderr")"; break; }
    holds "PyTorch $mode runs under gpuflame" 0 $rc
    [ $rc = 0 ] || continue
    plainly "$runs/kineto" "${program[@]}" --kineto table.json
    tell kineto "PyTorch $mode" "$runs/gpuflame" "$runs/kineto/table.json"
    if [ -f "$bin/probe.so" ]; then
        under_probe witness "$runs/witness" "${program[@]}" && tell witness "PyTorch $mode" "$runs/gpuflame" "$runs/witness/probe.jsonl"
    fi
done

for name in jax cupy; do
    runs=$KIT_STEP/$name
    under_gpuflame "$runs/gpuflame" python3 "$KIT_HERE/programs/${name}_program.py"
    rc=$?
    [ $rc = 75 ] && { missing "$name: $(tail -n 1 "$runs/gpuflame/stderr")"; continue; }
    holds "$name runs under gpuflame" 0 $rc
    [ $rc = 0 ] && [ -f "$bin/probe.so" ] || continue
    under_probe witness "$runs/witness" python3 "$KIT_HERE/programs/${name}_program.py" || continue
    if [ $name = cupy ]; then
        tell expected "$name" "$KIT_HERE/programs/cupy_program.py" "$runs/gpuflame"
    fi
    tell witness "$name" "$runs/gpuflame" "$runs/witness/probe.jsonl"
done
exit 0
