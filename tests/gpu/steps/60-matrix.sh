# The cost matrix: what each part of CUPTI, and gpuflame, adds to a launch
# LIMIT 200
# Rounds over all levels, so that a machine that changes its speed changes all of them; as many rounds as fit.

need loop
need probe.so
launches=$(quick 1000000 3000) rounds=$(quick 7 1) budget=$(quick 170 60) within=60
begin=$SECONDS

level() { # NAME COMMAND-PREFIX..: one run, a value into the level's file
    local name=$1 value
    shift
    if "$@" "$KIT_STEP/$name" "$bin/loop" "$launches"; then
        value=$(sed -n 's/.*"median_ns": \([0-9.]*\).*/\1/p' "$KIT_STEP/$name/stdout")
        [ -n "$value" ] && printf '%s\n' "$value" >>"$KIT_STEP/$name.values"
        sed -n 's/.*"wall_ns_per_launch": \([0-9.]*\).*/\1/p' "$KIT_STEP/$name/stdout" >>"$KIT_STEP/$name.wall"
    else
        holds "the loop runs with: $name" 0 1
    fi
}

export KIT_TRUTH=0
# shellcheck disable=SC2329 # called through level
closed() { GPUFLAME_ENABLED=0 under_gpuflame "$@"; }
# shellcheck disable=SC2329
everything() { GPUFLAME_FORMATS=folded,svg,csv,gfr under_gpuflame "$@"; }

levels=(nothing subscribe callback nested kernels copies apis backtrace)
for ((round = 0; round < rounds; round++)); do
    # Never a round that may not end in time, but at least one.
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
for name in "${levels[@]}" gpuflame_closed gpuflame gpuflame_everything; do
    [ -s "$KIT_STEP/$name.values" ] || continue
    mapfile -t values <"$KIT_STEP/$name.values"
    cost "a launch of an empty kernel, CPU side" "$(shown "$name")" "ns a launch (median of thousands)" "${values[@]}"
    mapfile -t values <"$KIT_STEP/$name.wall"
    cost "the same loop, waits included" "$(shown "$name")" "ns a launch" "${values[@]}"
done
fact "launches a run" "$launches"
exit 0
