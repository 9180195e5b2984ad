# Checks the programs of tests/pytorch, which other tests run on the simulated stack
# LIMIT 180
#
# The output and the exit code of each program must be the same with and without gpuflame. gpuflame must match all GPU
# work to launches, and captures every stack twice. Some programs need a second GPU, and some need a package (Triton,
# Transformers). On the simulated stack the programs run only if --python names a Python with the PyTorch from
# tests/pytorch/install.

need_gpuflame
[ "$KIT_SIMULATED" = 0 ] || [ -n "$KIT_PYTHON" ] || skip "PyTorch for the simulated stack: --python names one"
torch=$(python_with torch)
[ -n "$torch" ] || skip "PyTorch: no Python here has the module torch; --python FILE names one"
programs=$KIT_ROOT/tests/pytorch/programs
[ -d "$programs" ] || skip "tests/pytorch/programs: take that folder along"
within=45 budget=$((KIT_LIMIT - 10)) begin=$SECONDS
tell() { python "$KIT_HERE/check.py" "$@" >>"$facts"; }
export HF_HUB_OFFLINE=1 STEPS=3
gpus=$("$torch" -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null)

has() { "$torch" -c "import sys; from importlib.util import find_spec; sys.exit(find_spec('$1') is None)" 2>/dev/null; }
# The first run of each program fills these caches, so later runs compile nothing.
export TORCHINDUCTOR_CACHE_DIR=$KIT_STEP/inductor TRITON_CACHE_DIR=$KIT_STEP/triton TORCHINDUCTOR_COMPILE_THREADS=1

for name in ${KIT_PROGRAMS:-train decode ranges pressure loader share devices ddp transformers_models compiled}; do
    case $name in
        devices | ddp) [ "${gpus:-1}" -ge 2 ] || { missing "$name.py: a second GPU"; continue; } ;;
        transformers_models) has transformers || { missing "$name.py: Transformers"; continue; } ;;
        compiled) has triton || { missing "$name.py: Triton"; continue; } ;;
    esac
    [ $((SECONDS - begin)) -gt "$budget" ] && { missing "$name.py: there was no time for it"; continue; }
    runs=$KIT_STEP/$name command=("$torch" "$programs/$name.py")
    if [ "$name" = compiled ]; then
        command+=(reduce-overhead)
        plainly "$runs/warm" "${command[@]}" || { missing "$name.py: it does not compile here"; continue; }
    fi
    plainly "$runs/plain" "${command[@]}"
    rc=$?
    KIT_VERIFY=1 under_gpuflame "$runs/gpuflame" "${command[@]}"
    holds "$name.py: the exit code is the same" $rc $?
    # If a program computes its loss with additions in no fixed order, the last digits of the loss differ between runs.
    case $name in
        train | compiled) ;;
        *) holds "$name.py: so is what it prints" "$(sort "$runs/plain/stdout")" "$(sort "$runs/gpuflame/stdout")" ;;
    esac
    [ $rc = 0 ] || fact "$name.py: its last words" "$(tail -n 3 "$runs/plain/stderr")"
    # These programs have several processes that use the GPU, and each process writes its own ledger.
    case $name in share | ddp) continue ;; esac
    tell ledger "$name.py" "$runs/gpuflame"
    tell verify "$name.py" "$runs/gpuflame"
done
exit 0
