# End to end: a transformer's decode step under each profiler, eager and as a graph
# LIMIT 300

[ "$KIT_SIMULATED" = 0 ] || skip "PyTorch needs a real CUDA stack"
command -v python3 >/dev/null || skip "python3"
within=120 rounds=$(quick 3 1) budget=$(quick 270 100) begin=$SECONDS
export KIT_TRUTH=0
: >"$KIT_STEP/values"

run() { # SHOWN WITH COMMAND-PREFIX.. FOLDER
    local shown=$1 with=$2 rc
    shift 2
    "$@" python3 "$KIT_HERE/programs/transformer.py" --with "$with" --seconds "$(quick 3 0.5)"
    rc=$?
    [ $rc = 75 ] && skip "PyTorch: $(tail -n 1 "${*: -1}/stderr")"
    holds "the transformer runs with: $shown" 0 $rc
    [ $rc = 0 ] && printf '%s\t%s\n' "$shown" "$(tail -n 1 "${*: -1}/stdout")" >>"$KIT_STEP/values"
}

for ((round = 0; round < rounds; round++)); do
    [ $round -gt 0 ] && [ $(((SECONDS - begin) * (round + 1) / round)) -gt "$budget" ] && break
    run nothing nothing plainly "$KIT_STEP/nothing"
    [ -n "$KIT_GPUFLAME" ] && run gpuflame nothing under_gpuflame "$KIT_STEP/gpuflame"
    run torch.profiler profiler plainly "$KIT_STEP/profiler"
    run "torch.profiler, with_stack" stacks plainly "$KIT_STEP/stacks"
    [ -f "$bin/probe.so" ] && run "CUPTI and backtrace()" nothing under_probe backtrace "$KIT_STEP/backtrace"
done
python3 - "$KIT_STEP/values" <<'PY' >>"$facts"
import json, sys
from collections import defaultdict
values, about = defaultdict(list), {}
for line in open(sys.argv[1]):
    shown, _, found = line.partition("\t")
    found = json.loads(found)
    about = {key: found[key] for key in ("architecture", "parameters", "graph_error") if key in found}
    for mode in ("eager", "graph"):
        if found.get(f"{mode}_per_s"):
            values[mode, shown].append(round(found[f"{mode}_per_s"], 2))
print(json.dumps({"fact": "model", "value": about}))
for (mode, shown), numbers in values.items():
    print(json.dumps({"cost": f"a transformer's decode step, {mode}", "with": shown, "unit": "steps/s", "values": numbers}))
PY
exit 0
