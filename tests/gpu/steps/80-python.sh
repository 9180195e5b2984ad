# Checks PyTorch (eager, as a CUDA graph, and compiled with Triton), JAX and CuPy
# LIMIT 200
#
# Each program runs once under gpuflame and once under its witness, a second profiler: torch.profiler for PyTorch, and
# the probe for all programs. gpuflame and the witness never run in the same run, because older CUPTI versions allow one
# subscriber. Counts must be equal; if a library tunes itself at run time, the report only shows the differences. Each
# program runs once more with every stack captured twice, to compare two unwinders.

need_gpuflame
[ "$KIT_SIMULATED" = 0 ] || skip "PyTorch, JAX and CuPy need a real CUDA stack"
within=70
tell() { python "$KIT_HERE/check.py" "$@" >>"$facts"; }
export TORCHINDUCTOR_CACHE_DIR=$KIT_STEP/inductor TRITON_CACHE_DIR=$KIT_STEP/triton
# Programs other than JAX may use the same small GPU, so JAX must not allocate its memory in advance. No library may
# search for missing files on the network.
export XLA_PYTHON_CLIENT_PREALLOCATE=false HF_HUB_OFFLINE=1
iterations=$(quick 20 3)

why() { tail -n 1 "$1/stderr" | cut -c 1-300; }

verified() { # NAME COMMAND..
    KIT_VERIFY=1
    under_gpuflame "$runs/verify" "${@:2}"
    runs "$1 runs with GPUFLAME_VERIFY=1" $? "$runs/verify"
    KIT_VERIFY=0
    tell verify "$1" "$runs/verify"
}

witnessed() { # NAME COMMAND..
    [ -f "$bin/probe.so" ] || return
    under_probe witness "$runs/witness" "${@:2}"
    runs "$1 runs under the probe" $? "$runs/witness"
    tell witness "$1" "$runs/gpuflame" "$runs/witness/probe.jsonl"
}

torch=$(python_with torch)
[ -n "$torch" ] || missing "PyTorch: no Python here has the module torch; --python FILE names one"
for mode in eager graph compile; do
    [ -n "$torch" ] || break
    runs=$KIT_STEP/torch_$mode
    program=("$torch" "$KIT_HERE/programs/model.py" --mode "$mode" --iterations "$iterations")
    if [ $mode = compile ]; then # fills the compile caches first
        within=100 plainly "$runs/first" "${program[@]}" || { missing "torch.compile: $(why "$runs/first")"; continue; }
    fi
    under_gpuflame "$runs/gpuflame" "${program[@]}"
    rc=$?
    [ $rc = 75 ] && { missing "PyTorch: $(why "$runs/gpuflame")"; break; }
    runs "PyTorch $mode runs under gpuflame" $rc "$runs/gpuflame"
    [ $rc = 0 ] || continue
    plainly "$runs/kineto" "${program[@]}" --kineto table.json
    runs "PyTorch $mode runs under torch.profiler" $? "$runs/kineto"
    tell kineto "PyTorch $mode" "$runs/gpuflame" "$runs/kineto/table.json"
    functions=(attend feed)
    [ $mode = compile ] && functions=() # Inductor runs the whole model in one function
    tell functions "PyTorch $mode" "$runs/gpuflame" model.py "${functions[@]}"
    [ $mode = compile ] || tell sites "PyTorch $mode" "$runs/gpuflame" softmax layer_norm
    [ $mode = graph ] || verified "PyTorch $mode" "${program[@]}"
    [ $mode = eager ] && witnessed "PyTorch $mode" "${program[@]}"
done

for name in cupy jax; do
    runs=$KIT_STEP/$name
    module=$(python_with $name)
    [ -n "$module" ] || { missing "$name: no Python here has the module $name"; continue; }
    program=("$module" "$KIT_HERE/programs/${name}_program.py")
    under_gpuflame "$runs/gpuflame" "${program[@]}"
    rc=$?
    [ $rc = 75 ] && { missing "$name: $(why "$runs/gpuflame")"; continue; }
    runs "$name runs under gpuflame" $rc "$runs/gpuflame"
    [ $rc = 0 ] || continue
    [ $name = cupy ] && tell expected "$name" "$KIT_HERE/programs/cupy_program.py" "$runs/gpuflame"
    witnessed "$name" "${program[@]}"
    verified "$name" "${program[@]}"
done
exit 0
