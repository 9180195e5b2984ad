# What steps share: notes for the report, programs under gpuflame or the probe, each under a limit. Sourced by
# run.sh before a step, with KIT_HERE (the kit), KIT_ROOT (the repository), KIT_OUT, KIT_STEP (this step's
# folder), KIT_SIMULATED, KIT_QUICK, KIT_GPUFLAME (the library or nothing) and KIT_CLI.
# shellcheck shell=bash

bin=$KIT_OUT/bin
facts=$KIT_STEP/facts.jsonl

json() {
    local text
    text=$(printf '%s' "$1" | tr -d '\000-\010\013-\037' | head -c 4000)
    text=${text//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\n'/\\n}
    text=${text//$'\t'/ }
    printf '"%s"' "$text"
}

# fact NAME VALUE: something the report shall say.
fact() { printf '{"fact": %s, "value": %s}\n' "$(json "$1")" "$(json "$2")" >>"$facts"; }

# missing WHAT: a tool or package that is not here, and what is left out therefore.
missing() {
    printf '{"missing": %s}\n' "$(json "$1")" >>"$facts"
    echo "missing: $1"
}

# skip WHY: nothing of this step can be done here.
skip() {
    missing "$1"
    exit 75
}

# holds SENTENCE EXPECTED FOUND: a check; the step goes on either way.
holds() {
    local ok=false
    [ "$2" = "$3" ] && ok=true
    printf '{"check": %s, "expected": %s, "found": %s, "ok": %s}\n' "$(json "$1")" "$(json "$2")" "$(json "$3")" $ok >>"$facts"
    [ $ok = true ] || echo "does not hold: $1: expected $2, found $3"
}

export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

# Seconds that one program may take.
within=60

# cost PROGRAM WITH UNIT VALUES..: measured values of one program under one tool.
cost() {
    local program=$1 with=$2 unit=$3 values
    shift 3
    values=$(printf '%s, ' "$@")
    printf '{"cost": %s, "with": %s, "unit": %s, "values": [%s]}\n' "$(json "$program")" "$(json "$with")" "$(json "$unit")" "${values%, }" >>"$facts"
}

# need PROGRAM: it was built, or the step ends with the reason why not.
need() {
    [ -x "$bin/$1" ] || [ -f "$bin/$1" ] && return
    skip "$1: $(cat "$bin/$1.why" 2>/dev/null || echo 'was not built; run the step build')"
}

need_gpuflame() { [ -n "$KIT_GPUFLAME" ] || skip "libgpuflame.so: build it with cargo build --release -p gpuflame-capi, or say --gpuflame FILE"; }

# The CUDA libraries that programs shall find: the simulated ones, or what the machine has.
if [ "$KIT_SIMULATED" = 1 ]; then
    export LD_LIBRARY_PATH=$KIT_OUT/sim
    PROBE_CUPTI=$KIT_OUT/sim/libcupti.so.13
else
    PROBE_CUPTI=
    for file in /usr/local/cuda*/extras/CUPTI/lib64/libcupti.so.1? /usr/local/cuda*/lib64/libcupti.so.1? \
        /usr/local/cuda*/targets/x86_64-linux/lib/libcupti.so.1? /usr/lib/x86_64-linux-gnu/libcupti.so.1?; do
        [ -z "$PROBE_CUPTI" ] && [ -f "$file" ] && PROBE_CUPTI=$file
    done
    if [ -z "$PROBE_CUPTI" ] && command -v python3 >/dev/null; then
        PROBE_CUPTI=$(timeout 60 python3 "$KIT_HERE/find_cupti.py")
    fi
fi
export PROBE_CUPTI

quick() { if [ "$KIT_QUICK" = 1 ]; then echo "$2"; else echo "$1"; fi; } # quick MANY FEW

# Each in a folder of its own, whose path they print; stdout, stderr and rc lie in it.
run_in() { # FOLDER COMMAND..
    local folder=$1 rc
    shift
    mkdir -p "$folder"
    (cd "$folder" && timeout -k 5 "$within" "$@" >stdout 2>stderr </dev/null)
    rc=$?
    echo $rc >"$folder/rc"
    [ $rc = 0 ] || echo "exit $rc: $* (in $folder): $(tail -n 3 "$folder/stderr")"
    return $rc
}

plainly() { # FOLDER COMMAND..
    run_in "$@"
}

# With KIT_VERIFY=1 every stack is taken twice; with KIT_TRUTH=0, for timings, the simulated stack keeps no account.
under_gpuflame() { # FOLDER COMMAND..
    local folder=$1 settings=(CUDA_INJECTION64_PATH="$KIT_GPUFLAME" GPUFLAME_OUTPUT=out)
    shift
    [ "${KIT_VERIFY:-0}" = 0 ] || settings+=(GPUFLAME_VERIFY=1)
    [ "${KIT_TRUTH:-1}" = 0 ] || settings+=(GPUSIM_TRUTH=summary:truth.json)
    run_in "$folder" env "${settings[@]}" "$@"
}

under_probe() { # MODE FOLDER COMMAND..
    local mode=$1 folder=$2
    shift 2
    mkdir -p "$folder"
    rm -f "$folder/probe.jsonl"
    PROBE=$mode PROBE_OUT=probe.jsonl CUDA_INJECTION64_PATH=$bin/probe.so run_in "$folder" "$@"
}

python() { timeout -k 5 "$within" python3 "$@"; }
