# Answers fifteen questions about the real CUDA stack, each by a program
# LIMIT 90
#
# The simulated stack was written with assumed answers to these questions. If the answers of real hardware differ, the
# simulated stack must be corrected.

need probe.so
within=25
launches=$(quick 20000 2000)
launched=$((launches + 100)) # the loop makes 100 warm-up launches

if [ -x "$bin/loop" ]; then
    # Question 2: does CUPTI deliver a record before its call's EXIT? Small buffers make CUPTI deliver early.
    PROBE_BUFFER=8192 under_probe record "$KIT_STEP/early" "$bin/loop" "$(quick 3000 2000)"
    # Questions 9 and 10: the probe provides no buffer, or two small buffers and then none.
    PROBE_BUFFERS=0 under_probe drops "$KIT_STEP/null" "$bin/loop" 1000
    PROBE_BUFFER=16384 PROBE_BUFFERS=2 under_probe drops "$KIT_STEP/drops" "$bin/loop" "$launches"
    under_probe names "$KIT_STEP/names" "$bin/loop" 1000
fi
# Question 4: which exit handlers run first, the driver's or the probe's?
[ -x "$bin/tiny" ] && under_probe exit "$KIT_STEP/exit" "$bin/tiny" exit
# Question 8: a child that is forked after cuInit. If a child makes a CUPTI call, the simulated stack aborts it; the
# probe makes no such call.
if [ -x "$bin/forks" ]; then
    plainly "$KIT_STEP/fork_plain" "$bin/forks"
    under_probe fork "$KIT_STEP/fork" "$bin/forks"
fi
# Questions 1 and 7 need PyTorch: its libraries make nested calls, and torch.profiler is a CUPTI client next to
# gpuflame.
torch=$(python_with torch)
if [ "$KIT_SIMULATED" = 0 ] && [ -n "$torch" ]; then
    export TRITON_CACHE_DIR=$KIT_STEP/triton
    within=40 # importing PyTorch may take half of that
    PROBE_BUFFER=1048576 under_probe record "$KIT_STEP/torch" "$torch" "$KIT_HERE/programs/torch_ask.py" launches
    plainly "$KIT_STEP/maps" "$torch" "$KIT_HERE/programs/torch_ask.py" maps
    [ -n "$KIT_GPUFLAME" ] && under_gpuflame "$KIT_STEP/beside" "$torch" "$KIT_HERE/programs/torch_ask.py" beside
else
    missing "PyTorch on a GPU: cuBLAS's and Triton's nested calls, and which libcupti PyTorch maps"
fi
golden=none
for folder in "$KIT_OUT/golden/simulated" "$KIT_OUT"/golden/hw/*; do
    [ -d "$folder" ] && golden=$folder
done
python "$KIT_HERE/answers.py" "$KIT_STEP" "$golden" "$launched" >>"$facts"
