# Times and records variants of one PyTorch step, to check predictions of one variant from another
# LIMIT 110

[ "$KIT_SIMULATED" = 0 ] || skip "PyTorch needs a real CUDA stack"
torch=$(python_with torch)
[ -n "$torch" ] || skip "PyTorch: no Python here has the module torch; --python FILE names one"
within=60
program=("$torch" "$KIT_HERE/programs/variants.py")
kept=$KIT_OUT/variants
mkdir -p "$kept"

plainly "$KIT_STEP/time" "${program[@]}" time --rounds "$(quick 5 1)" --steps "$(quick 20 2)"
rc=$?
[ $rc = 75 ] && skip "PyTorch: $(tail -n 1 "$KIT_STEP/time/stderr")"
runs "the variants run" $rc "$KIT_STEP/time"
cp "$KIT_STEP/time/stdout" "$kept/times.jsonl"
fact "nanoseconds per step, without a profiler" "$(cat "$KIT_STEP/time/stdout")"

# A recording is small enough to keep if it contains only a few steps. Tests predict the other variants from the
# recording of `eager`.
[ -n "$KIT_GPUFLAME" ] || skip "libgpuflame.so: the recordings of the variants"
export GPUFLAME_FORMATS=gfr GPUFLAME_DEPS=1
for size in small large; do
    for variant in eager double stream sync graph; do
        folder=$KIT_STEP/$size-$variant
        under_gpuflame "$folder" "${program[@]}" run $size $variant --steps "$(quick 12 2)"
        runs "variant $size $variant runs under gpuflame" $? "$folder"
        mv "$folder/out.gfr" "$kept/$size-$variant.gfr" 2>/dev/null
        cp "$folder/stdout" "$kept/$size-$variant.json" 2>/dev/null
    done
done
exit 0
