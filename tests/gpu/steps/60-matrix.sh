# Measures the time that each part of CUPTI, and gpuflame, adds to a launch
# LIMIT 140
#
# Each round measures all levels, so that a change of the machine's speed affects all of them in the same way. The step
# makes as many rounds as its time allows.

need loop
need probe.so
launches=$(quick 1000000 3000) rounds=$(quick 7 1) budget=$((KIT_LIMIT - 15)) within=40
begin=$SECONDS

shown() {
    case $1 in
        subscribe) echo "subscribed only" ;;
        callback) echo "+ empty callback of the runtime's launches" ;;
        nested) echo "+ the driver's callback inside" ;;
        kernels) echo "+ kernel records" ;;
        copies) echo "+ copy and fill records and callbacks" ;;
        apis) echo "+ a record per API call" ;;
        backtrace) echo "copies, and backtrace() at each ENTER" ;;
        gpuflame_closed) echo "gpuflame, window closed" ;;
        gpuflame) echo "gpuflame" ;;
        gpuflame_everything) echo "gpuflame, with a recording" ;;
        *) echo "$1" ;;
    esac
}

level() { # NAME COMMAND-PREFIX..: one run
    local name=$1 value many=$launches
    shift
    [ "$name" = backtrace ] && many=$((launches > 4000 ? launches / 4 : launches)) # each takes tens of microseconds
    if "$@" "$KIT_STEP/$name" "$bin/loop" "$many"; then
        # Report each value immediately, so that a step that is stopped at its time limit keeps its values.
        value=$(sed -n 's/.*"median_ns": \([0-9.]*\).*/\1/p' "$KIT_STEP/$name/stdout")
        cost "a launch of an empty kernel, CPU side" "$(shown "$name")" "ns a launch (median of thousands)" "$value"
        value=$(sed -n 's/.*"wall_ns_per_launch": \([0-9.]*\).*/\1/p' "$KIT_STEP/$name/stdout")
        cost "the same loop, waits included" "$(shown "$name")" "ns a launch" "$value"
    else
        runs "the loop runs with: $name" 1 "$KIT_STEP/$name"
    fi
    rm -f "$KIT_STEP/$name"/*.gfr
}

export KIT_TRUTH=0
# shellcheck disable=SC2329 # level calls this function
closed() { GPUFLAME_ENABLED=0 under_gpuflame "$@"; }
# shellcheck disable=SC2329
everything() { GPUFLAME_FORMATS=folded,svg,csv,gfr under_gpuflame "$@"; }

levels=(nothing subscribe callback nested kernels copies apis backtrace)
for ((round = 0; round < rounds; round++)); do
    # At least one round runs; a further round starts only if it will end in time.
    [ $round -gt 0 ] && [ $(((SECONDS - begin) * (round + 1) / round)) -gt "$budget" ] && break
    level nothing plainly
    for name in "${levels[@]:1}"; do level "$name" under_probe "$name"; done
    if [ -n "$KIT_GPUFLAME" ]; then
        level gpuflame_closed closed
        level gpuflame under_gpuflame
        level gpuflame_everything everything
    fi
done
[ -n "$KIT_GPUFLAME" ] || missing "libgpuflame.so: its rows of the matrix"

fact "launches a run" "$launches"
exit 0
