# Records ten tiny programs: CUPTI callbacks in order, buffers as bytes
# LIMIT 30
#
# The step writes the recordings to golden/hw/GPU-DRIVER/ in the report's folder. The recordings are small enough to
# commit into tests/golden/hw/. On the simulated stack, it writes them to golden/simulated/; these only prove that the
# recorder works.

need probe.so
word() { printf '%s' "$1" | tr -cs 'A-Za-z0-9.\n' '_' | sed 's/^_//; s/_$//'; }
gpu=simulated driver=13.0
where=$KIT_OUT/golden/simulated
if [ "$KIT_SIMULATED" = 0 ]; then
    machine=$KIT_OUT/steps/machine/facts.jsonl
    gpu=$(sed -n 's/^{"fact": "GPU 0 by libcuda", "value": "\([^,"]*\).*/\1/p' "$machine" | head -n 1)
    driver=$(sed -n 's/^{"fact": "driver", "value": "\([^"]*\).*/\1/p' "$machine" | head -n 1)
    where=$KIT_OUT/golden/hw/$(word "${gpu:-unknown}")-$(word "${driver:-unknown}")
fi
mkdir -p "$where"
made=0
record() { # NAME PROGRAM ARGUMENT
    if [ ! -x "$bin/$2" ]; then
        missing "$1: $2: $(cat "$bin/$2.why" 2>/dev/null)"
        return
    fi
    rm -f "$where/$1.jsonl"
    under_probe record "$KIT_STEP/$1" "$bin/$2" "$3"
    local rc=$?
    [ $rc = 75 ] && missing "$1: $(tail -n 1 "$KIT_STEP/$1/stderr")" && return
    runs "$1 runs under the recorder" $rc "$KIT_STEP/$1"
    if [ -s "$KIT_STEP/$1/probe.jsonl" ]; then
        mv "$KIT_STEP/$1/probe.jsonl" "$where/$1.jsonl"
        made=$((made + 1))
    fi
}
export PROBE_BUFFER=65536
for mode in runtime copies streams exit; do record $mode tiny $mode; done
record driver driver 2
for mode in capture explicit update child clone; do record $mode tiny_graph $mode; done
unset PROBE_BUFFER

version=$(sed -n '1s/.*"version":\([0-9]*\).*/\1/p' "$where/runtime.jsonl" 2>/dev/null)
printf '{"gpu": %s, "driver": %s, "cupti": %s, "date": "%s", "simulated": %s}\n' "$(json "$gpu")" "$(json "$driver")" "${version:-null}" \
    "$(date -u +%Y-%m-%d)" "$([ "$KIT_SIMULATED" = 1 ] && echo true || echo false)" >"$where/metadata.json"
fact "recordings made" "$made of 10"
fact "recordings, bytes" "$(cat "$where"/*.jsonl 2>/dev/null | wc -c)"
exit 0
