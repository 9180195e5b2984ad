# Functions that all steps use: they write facts for the report, and run programs under gpuflame or the probe, each with
# a time limit. The script run.sh sources this file before a step. The script run.sh sets these variables: KIT_HERE (the
# kit), KIT_ROOT (the repository), KIT_OUT (the output folder), KIT_STEP (the step's folder), KIT_LIMIT (the step's time
# limit in seconds), KIT_SIMULATED and KIT_QUICK (0 or 1), KIT_GPUFLAME, KIT_CLI, KIT_PREBUILT and KIT_PYTHON (each a
# path or empty), and KIT_OWN_PYTHON. shellcheck shell=bash

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

# fact NAME VALUE: adds a value to the report.
fact() { printf '{"fact": %s, "value": %s}\n' "$(json "$1")" "$(json "$2")" >>"$facts"; }

# missing WHAT: reports a tool or package that this machine lacks, and the checks that the kit skips for that reason.
missing() {
    printf '{"missing": %s}\n' "$(json "$1")" >>"$facts"
    echo "missing: $1"
}

# skip WHY: ends the step, because this machine can run no part of it.
skip() {
    missing "$1"
    exit 75
}

# holds SENTENCE EXPECTED FOUND: checks a value. The step continues whether the check holds or not.
holds() {
    local ok=false
    [ "$2" = "$3" ] && ok=true
    printf '{"check": %s, "expected": %s, "found": %s, "ok": %s}\n' "$(json "$1")" "$(json "$2")" "$(json "$3")" $ok >>"$facts"
    [ $ok = true ] || echo "does not hold: $1: expected $2, found $3"
}

export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

# Time limit of one program in seconds.
within=60

# cost PROGRAM WITH UNIT VALUES..: adds values to the report that were measured for one program under one tool.
cost() {
    local program=$1 with=$2 unit=$3 values
    shift 3
    values=$(printf '%s, ' "$@")
    printf '{"cost": %s, "with": %s, "unit": %s, "values": [%s]}\n' "$(json "$program")" "$(json "$with")" "$(json "$unit")" "${values%, }" >>"$facts"
}

# runs SENTENCE RC FOLDER: checks that a program's exit code is 0; if it is not, adds the last lines of its stderr to
# the report.
runs() {
    [ "$2" = 0 ] || fact "the last words of: $1" "$(tail -n 5 "$3/stderr" 2>/dev/null | cut -c 1-400)"
    holds "$1" 0 "$2"
}

# need PROGRAM: checks that the program was built. If the program was not built, the step ends and reports the reason.
need() {
    [ -x "$bin/$1" ] || [ -f "$bin/$1" ] && return
    skip "$1: $(cat "$bin/$1.why" 2>/dev/null || echo 'was not built; run the step build')"
}

need_gpuflame() { [ -n "$KIT_GPUFLAME" ] || skip "libgpuflame.so: build it with cargo build --release, or say --gpuflame FILE"; }

# Add folders with CUDA's tools to PATH, because PATH may lack them.
for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-* /opt/cuda; do
    [ "$KIT_SIMULATED" = 0 ] && [ -n "$folder" ] && [ -d "$folder/bin" ] && PATH=$PATH:$folder/bin
done

# python_with MODULE: prints the path of the first Python that has the module, because a machine may have several
# Pythons. Prints nothing if no Python has it.
python_with() {
    local module=$1 known=$KIT_OUT/python-with-$1 python
    if [ ! -f "$known" ]; then
        : >"$known"
        for python in "$KIT_PYTHON" python3 python "${VIRTUAL_ENV:-/nowhere}/bin/python" "${CONDA_PREFIX:-/nowhere}/bin/python" \
            /opt/conda/bin/python /opt/venv/bin/python /usr/local/bin/python3 /usr/bin/python3 /opt/*/bin/python3 /opt/conda/envs/*/bin/python; do
            command -v "$python" >/dev/null 2>&1 || continue
            if timeout 30 "$python" -c "import sys; from importlib.util import find_spec; sys.exit(find_spec('$module') is None)" 2>/dev/null; then
                command -v "$python" >"$known"
                break
            fi
        done
    fi
    cat "$known"
}

# Runs one of the kit's own Python scripts, with a time limit.
python() { timeout -k 5 "$within" "${KIT_OWN_PYTHON:-python3}" "$@"; }

# PROBE_CUPTI is the libcupti that the probe loads if the program has not loaded one: the simulated libcupti, or the
# first libcupti that find_cupti.py found.
if [ "$KIT_SIMULATED" = 1 ]; then
    export LD_LIBRARY_PATH=$KIT_OUT/sim
    PROBE_CUPTI=$KIT_OUT/sim/libcupti.so.13
else
    PROBE_CUPTI=$(cat "$KIT_OUT/libcupti" 2>/dev/null)
fi
export PROBE_CUPTI
if [ -f "$KIT_OUT/no-gpu" ] && [ "$KIT_STEP" != "$KIT_OUT/steps/build" ] && [ "$KIT_STEP" != "$KIT_OUT/steps/machine" ]; then
    skip "a GPU: $(cat "$KIT_OUT/no-gpu")"
fi

quick() { if [ "$KIT_QUICK" = 1 ]; then echo "$2"; else echo "$1"; fi; } # quick MANY FEW

# If a step is stopped at its limit, it must end its program as well. Otherwise the program would continue during the
# next step, because `timeout` puts it into a separate process group.
running=
cut_off() {
    if [ -n "$running" ]; then
        kill -TERM "$running" 2>/dev/null
        for _ in 1 2 3 4 5 6 7 8; do kill -0 -- "-$running" 2>/dev/null && sleep 0.25; done
        kill -KILL -- "-$running" 2>/dev/null
    fi
    exit 124
}
trap cut_off TERM

# Runs the command in a separate folder, and writes the files stdout, stderr and rc there. stderr is opened for
# appending, because gpuflame writes its ledger to a file only if the file is opened in this way.
run_in() { # FOLDER COMMAND..
    local folder=$1 rc
    shift
    mkdir -p "$folder"
    (cd "$folder" && : >stderr && exec timeout -k 5 "$within" "$@" >stdout 2>>stderr </dev/null) &
    running=$!
    wait "$running"
    rc=$? running=
    echo $rc >"$folder/rc"
    [ $rc = 0 ] || echo "exit $rc: $* (in $folder): $(tail -n 3 "$folder/stderr")"
    [ $rc = 124 ] && echo "kit: cut off after $within s" >>"$folder/stderr"
    return $rc
}

plainly() { # FOLDER COMMAND..
    run_in "$@"
}

# With KIT_VERIFY=1, gpuflame captures every stack twice. With KIT_TRUTH=0, which timed runs set, the simulated stack
# writes no truth file.
under_gpuflame() { # FOLDER COMMAND..
    local folder=$1 settings=(CUDA_INJECTION64_PATH="$KIT_GPUFLAME" GPUFLAME_OUTPUT=out GPUFLAME_VERBOSE=1)
    shift
    # If gpuflame itself did not find the libcupti that the kit found (see the step "right"), all other measurements use
    # the kit's libcupti.
    [ ! -f "$KIT_OUT/search-failed" ] || settings+=(GPUFLAME_CUPTI="$PROBE_CUPTI")
    [ "${KIT_VERIFY:-0}" = 0 ] || settings+=(GPUFLAME_VERIFY=1)
    [ "${KIT_TRUTH:-1}" = 0 ] || settings+=(GPUSIM_TRUTH=summary:truth.json)
    run_in "$folder" env "${settings[@]}" "$@"
    local rc=$?
    case $rc in 132 | 134 | 135 | 136 | 139) where_it_died "$folder/died" env "${settings[@]}" "$@" ;; esac
    return $rc
}

# Runs a program again in a debugger after it crashed with gpuflame, because such a crash is the most important result
# of a first run.
where_it_died() { # FOLDER COMMAND..
    if ! command -v gdb >/dev/null; then
        missing "gdb: where ${*: -1} died is not known"
        return
    fi
    run_in "$1" gdb -nx -batch -ex run -ex 'bt 60' -ex 'info sharedlibrary' --args "${@:2}"
    fact "where ${*: -1} died" "$(grep -E '^(Program|Thread .* received|#)' "$1/stdout" | head -n 40)"
}

under_probe() { # MODE FOLDER COMMAND..
    local mode=$1 folder=$2
    shift 2
    mkdir -p "$folder"
    rm -f "$folder/probe.jsonl"
    PROBE=$mode PROBE_OUT=probe.jsonl CUDA_INJECTION64_PATH=$bin/probe.so run_in "$folder" "$@"
}
