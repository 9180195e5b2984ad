# Right: the programs of tests/pytorch, which else run on the simulated stack, as they are
# LIMIT 90
# Their output and exit code are the same with and without; all work is matched, and every stack taken twice. Those that need
# a second GPU want one.

need_gpuflame
[ "$KIT_SIMULATED" = 0 ] || skip "the programs of tests/pytorch run on the simulated stack in a test of their own"
torch=$(python_with torch)
[ -n "$torch" ] || skip "PyTorch: no Python here has the module torch; --python FILE names one"
programs=$KIT_ROOT/tests/pytorch/programs
[ -d "$programs" ] || skip "tests/pytorch/programs: take that folder along"
within=45 budget=$((KIT_LIMIT - 10)) begin=$SECONDS
tell() { python "$KIT_HERE/check.py" "$@" >>"$facts"; }
export HF_HUB_OFFLINE=1 STEPS=3
gpus=$("$torch" -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null)

for name in train decode ranges pressure loader share devices; do
    [ $name = devices ] && [ "${gpus:-1}" -lt 2 ] && { missing "$name.py: a second GPU"; continue; }
    [ $((SECONDS - begin)) -gt "$budget" ] && { missing "$name.py: there was no time for it"; continue; }
    runs=$KIT_STEP/$name
    plainly "$runs/plain" "$torch" "$programs/$name.py"
    rc=$?
    KIT_VERIFY=1 under_gpuflame "$runs/gpuflame" "$torch" "$programs/$name.py"
    holds "$name.py: the exit code is the same" $rc $?
    # A loss differs in its last digits from run to run, where sums are made in any order.
    [ $name = train ] || holds "$name.py: so is what it prints" "$(sort "$runs/plain/stdout")" "$(sort "$runs/gpuflame/stdout")"
    [ $rc = 0 ] || fact "$name.py: its last words" "$(tail -n 3 "$runs/plain/stderr")"
    # Each process that uses the GPU has a ledger of its own there.
    [ $name = share ] && continue
    tell ledger "$name.py" "$runs/gpuflame"
    tell verify "$name.py" "$runs/gpuflame"
done
exit 0
