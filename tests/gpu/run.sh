#!/usr/bin/env bash
# The truth kit: what must be seen on a real GPU, in one command and under 20 minutes, on a machine with CUDA
# and Python but no Rust. Each step runs under a limit of its own; what fails is recorded and the next goes on.
#
#   tests/gpu/run.sh [OPTIONS] [FOLDER]      writes FOLDER/report.json and report.md (default ./gpu-report)
#
#   --simulated      on the simulated stack of tests/gpusim: tests the kit itself, measures nothing
#   --only STEP      this step only; may be given several times. What it needs of `build` is built anyway
#   --also FILE      one more step, a script like those in steps/
#   --list           names the steps, with their limits
#   --quick          small counts, one repetition
#   --total SECONDS  for all steps together (1140)
#   --gpuflame FILE  the libgpuflame.so to test (default: looked for beside the kit and in target/release)
#   --cli FILE       the gpuflame command, likewise
#
# Exit codes: 0 all steps done or skipped, 1 one failed, 2 wrong use. FOLDER/report.json holds the rest.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export KIT_HERE=$here KIT_ROOT=$root KIT_SIMULATED=0 KIT_QUICK=0 KIT_GPUFLAME='' KIT_CLI=''

die() {
    echo "run.sh: $*; tests/gpu/run.sh --help tells more" >&2
    exit 2
}

value() { [ $# -ge 2 ] && [ -n "$2" ] || die "$1 wants a value"; }

name_of() { basename "$1" .sh | sed 's/^[0-9]*-//'; }

limit_of() {
    local limit
    limit=$(sed -n 's/^# LIMIT \([0-9][0-9]*\)$/\1/p' "$1" | head -n 1)
    echo "${limit:-60}"
}

steps=("$here"/steps/*.sh) only=() out='' total=1140 list=0
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help)
            sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
            exit 0
            ;;
        --simulated) KIT_SIMULATED=1 ;;
        --quick) KIT_QUICK=1 ;;
        --list) list=1 ;;
        --only) value "$@" && only+=("$2") && shift ;;
        --also) value "$@" && steps+=("$2") && shift ;;
        --total) value "$@" && total=$2 && shift ;;
        --gpuflame) value "$@" && KIT_GPUFLAME=$2 && shift ;;
        --cli) value "$@" && KIT_CLI=$2 && shift ;;
        -*) die "unknown option $1" ;;
        *)
            [ -z "$out" ] || die "two folders: $out and $1"
            out=$1
            ;;
    esac
    shift
done
case $total in '' | *[!0-9]*) die "--total wants a number of seconds, not $total" ;; esac
for step in "${steps[@]}"; do
    [ -f "$step" ] || die "no step $step"
done
if [ "$list" = 1 ]; then
    for step in "${steps[@]}"; do
        printf '%-14s %4s s  %s\n' "$(name_of "$step")" "$(limit_of "$step")" "$(sed -n '1s/^# //p' "$step")"
    done
    exit 0
fi
for name in "${only[@]}"; do
    found=0
    for step in "${steps[@]}"; do [ "$(name_of "$step")" = "$name" ] && found=1; done
    [ $found = 1 ] || die "no step $name; --list names them"
done

out=${out:-gpu-report}
mkdir -p "$out" || die "cannot make the folder $out"
out=$(cd "$out" && pwd)
export KIT_OUT=$out
command -v timeout >/dev/null || die "timeout (coreutils) is missing"

# The first of these that is a file.
first_file() {
    for file in "$@"; do
        [ -f "$file" ] && (cd "$(dirname "$file")" && echo "$PWD/$(basename "$file")") && return
    done
}
target=${CARGO_TARGET_DIR:-$root/target}
KIT_GPUFLAME=$(first_file "$KIT_GPUFLAME" "$here/libgpuflame.so" "$root/libgpuflame.so" "$target/release/libgpuflame.so")
KIT_CLI=$(first_file "$KIT_CLI" "$here/gpuflame" "$root/gpuflame" "$target/release/gpuflame")

report() {
    if command -v python3 >/dev/null; then
        timeout 60 python3 "$here/report.py" "$out"
    else
        printf '{"error": "python3 is missing: the steps ran, their facts are in steps/"}\n' >"$out/report.json"
        printf 'python3 is missing: the facts are in steps/*/facts.jsonl.\n' >"$out/report.md"
    fi
}

# outcome STEP STATUS RC SECONDS LIMIT: what the report says of a step.
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
    outcome "$name" running null 0 "$limit" # stays if the machine is taken away now
    report
    begin=$SECONDS
    # shellcheck disable=SC2016 # for the shell that runs the step
    KIT_STEP=$out/steps/$name timeout -k 10 "$limit" bash -uo pipefail -c '. "$KIT_HERE/lib.sh"; . "$1"' step "$step" \
        >"$out/steps/$name/log" 2>&1
    rc=$? seconds=$((SECONDS - begin))
    case $rc in
        0) status="done" ;;
        75) status=skipped ;;
        124 | 137) status="cut off at its limit" ;;
        *) status=failed ;;
    esac
    # A step that ended well but whose checks do not hold has failed.
    grep -qs '"ok": false' "$out/steps/$name/facts.jsonl" && [ "$status" = "done" ] && status=failed
    outcome "$name" "$status" "$rc" "$seconds" "$limit"
    printf '%-14s %-22s %4s s\n' "$name" "$status" "$seconds" >&2
    case $status in done | skipped) return 0 ;; *) return 1 ;; esac
}

date -u +%Y-%m-%dT%H:%M:%SZ >"$out/date"
failed=0
for step in "${steps[@]}"; do
    name=$(name_of "$step")
    wanted=1
    if [ ${#only[@]} -gt 0 ]; then
        wanted=0
        for one in "${only[@]}"; do [ "$one" = "$name" ] && wanted=1; done
        # What the others stand on.
        case $name in build) [ -e "$out/bin/done" ] || wanted=1 ;; esac
    fi
    [ $wanted = 1 ] || continue
    run_step "$step" || failed=1
done
# Few files to take home: recordings and everything else, beside the two reports.
[ -d "$out/golden" ] && tar -C "$out" -czf "$out/golden.tgz" golden
tar -C "$out" --exclude=bin --exclude=sim --exclude=golden -czf "$out/steps.tgz" steps 2>/dev/null
report
echo "report: $out/report.md" >&2
exit $failed
