# Checks that the gpuflame command explains a recording as the process itself did
# LIMIT 20

need_gpuflame
need plain
[ -n "$KIT_CLI" ] || skip "the gpuflame command: build it with cargo build --release, or say --cli FILE"
KIT_VERIFY=0
GPUFLAME_FORMATS=folded,csv,gfr under_gpuflame "$KIT_STEP/run" "$bin/plain"
runs "plain runs and is recorded" $? "$KIT_STEP/run"
timeout 30 "$KIT_CLI" flamegraph "$KIT_STEP/run/out.gfr" -o "$KIT_STEP/again.folded"
holds "gpuflame flamegraph ends well" 0 $?
holds "its stacks are those that the process wrote" \
    "$(LC_ALL=C sort "$KIT_STEP/run/out.folded" | sha256sum)" "$(LC_ALL=C sort "$KIT_STEP/again.folded" | sha256sum)"
differing=$(diff <(LC_ALL=C sort "$KIT_STEP/run/out.folded") <(LC_ALL=C sort "$KIT_STEP/again.folded") | head -n 8)
[ -z "$differing" ] || fact "the first differences (are command and library of one build?)" "$differing"
fact "gpuflame info" "$(timeout 30 "$KIT_CLI" info "$KIT_STEP/run/out.gfr" 2>&1 | head -n 40)"
exit 0
