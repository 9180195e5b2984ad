#!/usr/bin/env bash
# The truth kit runs all tests that need a real GPU, with one command and in less than 20 minutes. The machine needs
# CUDA and Python, but no Rust. Each step has its own time limit. If a step fails, the report states it, and the next
# step runs. The kit changes no setting of the GPU, downloads nothing and writes only into FOLDER.
#
#   tests/gpu/run.sh [OPTIONS] [FOLDER]      writes FOLDER/report.json and report.md (default ./gpu-report)
#
#   --simulated      runs on the simulated stack of tests/gpusim, to test the kit itself; measures nothing
#   --only STEPS     runs only these steps (separate them by commas, or repeat the option), `machine`, and the needed
#                    part of `build`. `golden` means recordings, and `cost` means matrix,decode,transformer
#   --part 1|2|3     runs one part in at most ten minutes: 1 correctness, 2 Python and costs, 3 PyTorch, variants
#   --also FILE      runs one more step, a script like those in steps/
#   --list           prints the steps and their time limits
#   --quick          uses small counts and one repetition
#   --total SECONDS  time limit of all steps together (default 1170; 580 with --part)
#   --gpuflame FILE  the libgpuflame.so to test (default: searched next to the kit and in target/release)
#   --cli FILE       the gpuflame command to test (same default folders)
#   --prebuilt DIR   programs from prebuild.sh, used if they cannot be built here (default: target/gpu-kit)
#   --python FILE    the first Python in which to search for PyTorch, JAX and CuPy
#
# Exit codes: 0 all steps done or skipped, 1 a step failed, 2 wrong usage. FOLDER/report.json has the details.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export KIT_HERE=$here KIT_ROOT=$root KIT_SIMULATED=0 KIT_QUICK=0 KIT_GPUFLAME='' KIT_CLI='' KIT_PREBUILT='' KIT_PYTHON=''
# Unset the caller's injected tools and gpuflame settings. Otherwise the tool would be loaded into every program of the
# kit, and the settings would change gpuflame's behaviour.
unset CUDA_INJECTION64_PATH LD_PRELOAD PROBE PROBE_OUT
for variable in $(compgen -e | grep '^GPUFLAME_'); do unset "$variable"; done

die() {
    echo "run.sh: $*; tests/gpu/run.sh --help tells more" >&2
    exit 2
}

value() { [ $# -ge 2 ] && [ -n "$2" ] || die "$1 wants a value"; }

file() { [ -e "$2" ] || die "$1: there is no $2"; }

name_of() { basename "$1" .sh | sed 's/^[0-9]*-//'; }

limit_of() {
    local limit
    limit=$(sed -n 's/^# LIMIT \([0-9][0-9]*\)$/\1/p' "$1" | head -n 1)
    echo "${limit:-60}"
}

steps=("$here"/steps/*.sh) only=() out='' total='' list=0
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help)
            sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
            exit 0
            ;;
        --simulated) KIT_SIMULATED=1 ;;
        --quick) KIT_QUICK=1 ;;
        --list) list=1 ;;
        --only)
            value "$@"
            for name in ${2//,/ }; do
                case $name in
                    golden) only+=(recordings) ;;
                    cost) only+=(matrix decode transformer) ;;
                    *) only+=("$name") ;;
                esac
            done
            shift
            ;;
        --part)
            value "$@"
            case $2 in
                1) only+=(right graph command recordings questions) ;;
                2) only+=(python matrix decode transformer) ;;
                3) only+=(programs variants) ;;
                *) die "--part wants 1, 2 or 3, not $2" ;;
            esac
            total=${total:-580}
            shift
            ;;
        --also) value "$@" && steps+=("$2") && shift ;;
        --total) value "$@" && total=$2 && shift ;;
        --gpuflame) value "$@" && file "$@" && KIT_GPUFLAME=$2 && shift ;;
        --cli) value "$@" && file "$@" && KIT_CLI=$2 && shift ;;
        --prebuilt) value "$@" && file "$@" && KIT_PREBUILT=$2 && shift ;;
        --python) value "$@" && file "$@" && KIT_PYTHON=$2 && shift ;;
        -*) die "unknown option $1" ;;
        *)
            [ -z "$out" ] || die "two folders: $out and $1"
            out=$1
            ;;
    esac
    shift
done
total=${total:-1170}
case $total in *[!0-9]*) die "--total wants a number of seconds, not $total" ;; esac
sum=0
for step in "${steps[@]}"; do
    [ -f "$step" ] || die "no step $step"
    sum=$((sum + $(limit_of "$step")))
done
if [ "$list" = 1 ]; then
    for step in "${steps[@]}"; do
        printf '%-14s %4s s  %s\n' "$(name_of "$step")" "$(limit_of "$step")" "$(sed -n '1s/^# //p' "$step")"
    done
    printf '%-14s %4s s  at most; --total ends it after %s s\n' together "$sum" "$total"
    exit 0
fi
for name in "${only[@]}"; do
    found=0
    for step in "${steps[@]}"; do [ "$(name_of "$step")" = "$name" ] && found=1; done
    [ $found = 1 ] || die "no step $name; --list names them"
done

out=${out:-gpu-report}
mkdir -p "$out/steps" || die "cannot make the folder $out"
out=$(cd "$out" && pwd)
export KIT_OUT=$out
command -v timeout >/dev/null || die "timeout (coreutils) is missing"
# A folder belongs either to the simulated stack or to hardware, because their programs and facts must never be
# confused.
stack=$([ $KIT_SIMULATED = 1 ] && echo simulated || echo hardware)
before=$(cat "$out/stack" 2>/dev/null || echo "$stack")
[ "$before" = "$stack" ] || die "$out holds a report of the $before stack; name another folder"
echo "$stack" >"$out/stack"

# Prints the first argument that is a file.
first_file() {
    for file in "$@"; do
        [ -f "$file" ] && (cd "$(dirname "$file")" && echo "$PWD/$(basename "$file")") && return
    done
}
target=${CARGO_TARGET_DIR:-$root/target}
KIT_GPUFLAME=$(first_file "$KIT_GPUFLAME" "$here/libgpuflame.so" "$root/libgpuflame.so" "$target/release/libgpuflame.so")
KIT_CLI=$(first_file "$KIT_CLI" "$here/gpuflame" "$root/gpuflame" "$target/release/gpuflame")
KIT_PREBUILT=$(cd "${KIT_PREBUILT:-$target/gpu-kit}" 2>/dev/null && pwd)

# Find a Python for the kit's own scripts. The kit searches for a Python with PyTorch later.
for python in "$KIT_PYTHON" python3 python /opt/conda/bin/python /usr/bin/python3; do
    if [ -n "$python" ] && timeout 20 "$python" -c 'import json, ctypes; "".removesuffix("")' >/dev/null 2>&1; then
        export KIT_OWN_PYTHON=$python
        break
    fi
done

report() {
    if [ -n "${KIT_OWN_PYTHON:-}" ] && timeout 60 "$KIT_OWN_PYTHON" -B "$here/report.py" "$out"; then return; fi
    printf '{"error": "no Python 3.9 or later, or it failed: the steps ran, their facts are in steps/"}\n' >"$out/report.json"
    printf 'No Python 3.9 or later, or it failed: the facts are in steps/*/facts.jsonl.\n' >"$out/report.md"
}

# outcome STEP STATUS RC SECONDS LIMIT: writes a step's result for the report.
outcome() {
    mkdir -p "$out/steps/$1"
    printf '{"name": "%s", "status": "%s", "rc": %s, "seconds": %s, "limit": %s, "simulated": %s}\n' \
        "$1" "$2" "$3" "$4" "$5" "$KIT_SIMULATED" >"$out/steps/$1/outcome.json"
}

run_step() { # FILE
    local step=$1 name limit left begin rc seconds status
    name=$(name_of "$step") limit=$(limit_of "$step") left=$((total - SECONDS))
    if [ "$left" -lt 10 ]; then
        outcome "$name" "time was up" null 0 "$limit"
        return 1
    fi
    [ "$limit" -gt "$left" ] && limit=$left
    rm -rf "$out/steps/$name"
    mkdir -p "$out/steps/$name"
    outcome "$name" running null 0 "$limit" # the report keeps this status if the machine disappears during the step
    report
    begin=$SECONDS
    # shellcheck disable=SC2016 # the shell that runs the step expands these variables
    KIT_STEP=$out/steps/$name KIT_LIMIT=$limit timeout -k 10 "$limit" \
        bash -uo pipefail -c '. "$KIT_HERE/lib.sh"; . "$1"' step "$step" >"$out/steps/$name/log" 2>&1
    rc=$? seconds=$((SECONDS - begin))
    case $rc in
        0) status="done" ;;
        75) status=skipped ;;
        124 | 137) status="cut off at its limit" ;;
        *) status=failed ;;
    esac
    # A step that ended normally counts as failed if one of its checks does not hold.
    grep -qs '"ok": false' "$out/steps/$name/facts.jsonl" && [ "$status" = "done" ] && status=failed
    outcome "$name" "$status" "$rc" "$seconds" "$limit"
    printf '%-14s %-22s %4s s of %s\n' "$name" "$status" "$seconds" "$limit" >&2
    case $status in done | skipped) return 0 ;; *) return 1 ;; esac
}

date -u +%Y-%m-%dT%H:%M:%SZ >"$out/date"
rm -f "$out/no-gpu"
failed=0
for step in "${steps[@]}"; do
    name=$(name_of "$step")
    wanted=1
    if [ ${#only[@]} -gt 0 ]; then
        wanted=0
        for one in "${only[@]}"; do [ "$one" = "$name" ] && wanted=1; done
        # The steps below run even if --only does not name them, because other steps depend on them.
        case $name in
            machine) wanted=1 ;;
            build) [ -e "$out/bin/done" ] || wanted=1 ;;
        esac
    fi
    [ $wanted = 1 ] || continue
    run_step "$step" || failed=1
    if [ "$name" = machine ] && [ $KIT_SIMULATED = 0 ] && [ ! -e "$out/no-gpu" ] && [ -n "${KIT_OWN_PYTHON:-}" ]; then
        timeout "$total" "$KIT_OWN_PYTHON" -B "$here/machine.py" --hold "$total" >/dev/null 2>&1 &
        trap 'kill '$!' 2>/dev/null' EXIT
    fi
done
# Pack the files that the user must copy from this machine into archives: two for the recordings, and one for logs and
# outputs.
for folder in golden variants; do
    [ ! -d "$out/$folder" ] || tar -C "$out" -czf "$out/$folder.tgz" $folder
done
rm -f "$out/steps.tgz"
tar -C "$out" --exclude='*.gfr' --exclude=inductor --exclude=triton --exclude='*.values' --exclude='*.wall' -czf "$out/steps.tgz" steps 2>/dev/null
report
[ -e "$out/no-gpu" ] && echo "run.sh: no GPU here ($(cat "$out/no-gpu")): nothing was measured" >&2 && failed=1
echo "report: $out/report.md" >&2
exit $failed
