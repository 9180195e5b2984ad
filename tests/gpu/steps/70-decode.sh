# End to end: tokens a second of a small decode loop (examples/llm_inference.cu)
# LIMIT 120

need llm_inference
tokens=$(quick 256 8) rounds=$(quick 5 1) budget=$(quick 100 30) within=60
begin=$SECONDS
export KIT_TRUTH=0

run() { # NAME COMMAND-PREFIX..
    local name=$1
    shift
    if "$@" "$KIT_STEP/$name" "$bin/llm_inference" --tokens "$tokens"; then
        sed -n 's/.*: \([0-9][0-9]*\) tokens\/s.*/\1/p' "$KIT_STEP/$name/stdout" >>"$KIT_STEP/$name.values"
    else
        holds "the decode loop runs with: $name" 0 1
    fi
}

for ((round = 0; round < rounds; round++)); do
    [ $round -gt 0 ] && [ $(((SECONDS - begin) * (round + 1) / round)) -gt "$budget" ] && break
    run nothing plainly
    [ -f "$bin/probe.so" ] && run copies under_probe copies && run backtrace under_probe backtrace
    [ -n "$KIT_GPUFLAME" ] && run gpuflame under_gpuflame
done
for name in nothing copies backtrace gpuflame; do
    [ -s "$KIT_STEP/$name.values" ] || continue
    mapfile -t values <"$KIT_STEP/$name.values"
    shown=$name
    [ $name = copies ] && shown="CUPTI alone: callbacks and records"
    [ $name = backtrace ] && shown="the same, and backtrace() at each ENTER"
    cost "decode loop of examples/llm_inference.cu" "$shown" "tokens/s" "${values[@]}"
done
if [ -n "$KIT_GPUFLAME" ]; then
    KIT_TRUTH=1
    under_gpuflame "$KIT_STEP/checked" "$bin/llm_inference" --tokens "$tokens"
    python "$KIT_HERE/check.py" ledger decode "$KIT_STEP/checked" >>"$facts"
fi
exit 0
