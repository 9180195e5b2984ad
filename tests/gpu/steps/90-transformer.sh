# Measures a transformer's decode step under each profiler, eager and as a graph
# LIMIT 110
#
# The CUDA graph has a separate row. The step reports each value immediately, so that a step that is stopped at its time
# limit keeps its values.

[ "$KIT_SIMULATED" = 0 ] || skip "PyTorch needs a real CUDA stack"
torch=$(python_with torch)
[ -n "$torch" ] || skip "PyTorch: no Python here has the module torch; --python FILE names one"
within=50 rounds=$(quick 3 1) budget=$((KIT_LIMIT - 10)) begin=$SECONDS
export KIT_TRUTH=0 HF_HUB_OFFLINE=1

run() { # SHOWN WITH COMMAND-PREFIX.. FOLDER
    local shown=$1 with=$2 folder=${*: -1} rc
    shift 2
    "$@" "$torch" "$KIT_HERE/programs/transformer.py" --with "$with" --seconds "$(quick 2 0.5)"
    rc=$?
    [ $rc = 75 ] && skip "PyTorch: $(tail -n 1 "$folder/stderr")"
    runs "the transformer runs with: $shown" $rc "$folder"
    python "$KIT_HERE/programs/transformer_facts.py" "$shown" <"$folder/stdout" >>"$facts"
}

for ((round = 0; round < rounds; round++)); do
    [ $round -gt 0 ] && [ $(((SECONDS - begin) * (round + 1) / round)) -gt "$budget" ] && break
    run nothing nothing plainly "$KIT_STEP/nothing"
    [ -n "$KIT_GPUFLAME" ] && run gpuflame nothing under_gpuflame "$KIT_STEP/gpuflame"
    run torch.profiler profiler plainly "$KIT_STEP/profiler"
    [ -f "$bin/probe.so" ] && run "CUPTI and backtrace()" nothing under_probe backtrace "$KIT_STEP/backtrace"
    run "torch.profiler, with_stack" stacks plainly "$KIT_STEP/stacks"
done
exit 0
