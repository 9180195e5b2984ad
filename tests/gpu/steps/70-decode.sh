# Measures tokens per second of two small decode loops, launch by launch and as a graph
# LIMIT 60

need llm_inference
tokens=$(quick 256 8) rounds=$(quick 5 1) budget=$((KIT_LIMIT - 10)) within=30
graph_tokens=$(quick 4000 20)
begin=$SECONDS
export KIT_TRUTH=0

shown() {
    case $1 in
        copies) echo "CUPTI alone: callbacks and records" ;;
        backtrace) echo "the same, and backtrace() at each ENTER" ;;
        *) echo "$1" ;;
    esac
}

one() { # PROGRAM TOKENS NAME COMMAND-PREFIX..
    local program=$1 many=$2 name=$3 folder=$KIT_STEP/$1-$3
    shift 3
    [ -x "$bin/$program" ] || return
    if "$@" "$folder" "$bin/$program" --tokens "$many"; then
        cost "decode loop of examples/$program.cu" "$(shown "$name")" "tokens/s" \
            "$(sed -n 's/.*: \([0-9][0-9]*\) tokens\/s.*/\1/p' "$folder/stdout")"
    else
        runs "$program runs with: $name" 1 "$folder"
    fi
}

run() { # NAME COMMAND-PREFIX..
    one llm_inference "$tokens" "$@"
    one graph_decode "$graph_tokens" "$@"
}

for ((round = 0; round < rounds; round++)); do
    [ $round -gt 0 ] && [ $(((SECONDS - begin) * (round + 1) / round)) -gt "$budget" ] && break
    run nothing plainly
    if [ -f "$bin/probe.so" ]; then
        run copies under_probe copies
        run backtrace under_probe backtrace
    fi
    [ -n "$KIT_GPUFLAME" ] && run gpuflame under_gpuflame
done
if [ -n "$KIT_GPUFLAME" ]; then
    KIT_TRUTH=1
    under_gpuflame "$KIT_STEP/checked" "$bin/llm_inference" --tokens "$tokens"
    python "$KIT_HERE/check.py" ledger decode "$KIT_STEP/checked" >>"$facts"
fi
exit 0
