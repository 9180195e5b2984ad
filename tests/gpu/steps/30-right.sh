# Right: C and CUDA programs with known launches, against a second reader and the programs' own sources
# LIMIT 150
# Counts, time per kernel, the functions above each launch, and the ledger. Times of another run of the same
# program, read by the probe, are the witness; CUDA events bound them from above and the kernels' own waiting
# from below. On the simulated stack its truth file makes all of that exact.

need_gpuflame
need probe.so

tell() { python "$KIT_HERE/check.py" "$@" >>"$facts"; }

right() { # NAME SOURCE COMMAND..
    local name=$1 source=$2 runs=$KIT_STEP/$1
    shift 2
    under_probe witness "$runs/witness" "$@"
    under_gpuflame "$runs/gpuflame" "$@" || return
    tell program "$name" "$KIT_HERE/programs/$source" "$runs/gpuflame" --witness "$runs/witness/probe.jsonl"
}

for program in plain streams; do
    if [ -x "$bin/$program" ]; then
        right $program $program.cu "$bin/$program" || holds "$program runs under gpuflame" 0 1
    else
        missing "$program: $(cat "$bin/$program.why" 2>/dev/null)"
    fi
done
[ -x "$bin/driver" ] && { right driver driver.c "$bin/driver" || holds "driver runs under gpuflame" 0 1; }
if [ -x "$bin/plain_static" ]; then
    right plain_static plain.cu "$bin/plain_static" || holds "plain with a static runtime runs under gpuflame" 0 1
fi

# The same once more with every stack taken twice, by two unwinders, and compared.
KIT_VERIFY=1
for program in plain streams driver; do
    [ -x "$bin/$program" ] || continue
    under_gpuflame "$KIT_STEP/$program/verify" "$bin/$program" || holds "$program runs with GPUFLAME_VERIFY=1" 0 1
    tell verify "$program" "$KIT_STEP/$program/verify"
done
KIT_VERIFY=0

# ncu reads hardware counters: the time of a few kernels by the GPU's own clock.
if [ "$KIT_SIMULATED" = 0 ] && command -v ncu >/dev/null && [ -x "$bin/plain" ]; then
    within=60 plainly "$KIT_STEP/ncu" ncu --clock-control none --csv --launch-count 20 -k regex:first_d20000 --metrics gpu__time_duration.sum \
        "$bin/plain" && tell ncu "$KIT_STEP/ncu/stdout" "$KIT_STEP/plain/gpuflame" first_d20000
fi
exit 0
