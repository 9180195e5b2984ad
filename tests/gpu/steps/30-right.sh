# Checks C and CUDA programs with known launches against their sources and against the probe
# LIMIT 60
#
# The step checks counts, time per kernel, the functions above each launch, and the ledger. The step compares kernel
# times with another run of the same program under the probe. The upper limit of a kernel's time is the time between
# CUDA events, and its lower limit is the time that the kernel waits. On the simulated stack the truth file makes all
# these checks exact.

need_gpuflame
need probe.so

# Check that gpuflame finds libcupti without a setting.
rm -f "$KIT_OUT/search-failed"
if [ -x "$bin/tiny" ]; then
    under_gpuflame "$KIT_STEP/first" "$bin/tiny" runtime
    runs "a first tiny program runs under gpuflame" $? "$KIT_STEP/first"
    found=$(grep -c '^gpuflame: launches ' "$KIT_STEP/first/stderr")
    holds "gpuflame finds libcupti and takes part in a program" 1 "$found"
    [ "$found" = 1 ] || fact "what gpuflame said" "$(tail -n 5 "$KIT_STEP/first/stderr")"
    [ "$found" = 0 ] && [ -n "$PROBE_CUPTI" ] && touch "$KIT_OUT/search-failed"
fi

tell() { python "$KIT_HERE/check.py" "$@" >>"$facts"; }

right() { # NAME SOURCE COMMAND..
    local name=$1 source=$2 runs=$KIT_STEP/$1
    shift 2
    under_probe witness "$runs/witness" "$@"
    under_gpuflame "$runs/gpuflame" "$@"
    local rc=$?
    runs "$name runs under gpuflame" $rc "$runs/gpuflame"
    [ $rc = 0 ] || return
    tell program "$name" "$KIT_HERE/programs/$source" "$runs/gpuflame" --witness "$runs/witness/probe.jsonl"
}

for program in plain streams; do
    if [ -x "$bin/$program" ]; then
        right $program $program.cu "$bin/$program"
    else
        missing "$program: $(cat "$bin/$program.why" 2>/dev/null)"
    fi
done
[ -x "$bin/driver" ] && right driver driver.c "$bin/driver"
[ -x "$bin/plain_static" ] && right plain_static plain.cu "$bin/plain_static"

# Run the same programs again with GPUFLAME_VERIFY: two unwinders capture every stack, and gpuflame compares the stacks.
KIT_VERIFY=1
for program in plain streams driver; do
    [ -x "$bin/$program" ] || continue
    under_gpuflame "$KIT_STEP/$program/verify" "$bin/$program"
    runs "$program runs with GPUFLAME_VERIFY=1" $? "$KIT_STEP/$program/verify"
    tell verify "$program" "$KIT_STEP/$program/verify"
done
KIT_VERIFY=0

# ncu reads hardware counters: it measures the time of a few kernels with the GPU's own clock.
if [ "$KIT_SIMULATED" = 0 ] && command -v ncu >/dev/null && [ -x "$bin/plain" ]; then
    within=40 plainly "$KIT_STEP/ncu" ncu --clock-control none --csv --launch-count 20 -k regex:first_d20000 --metrics gpu__time_duration.sum \
        "$bin/plain"
    tell ncu "$KIT_STEP/ncu/stdout" "$KIT_STEP/plain/gpuflame" first_d20000
fi
exit 0
