# Checks CUDA graphs that are captured, instantiated twice, updated, and built by hand
# LIMIT 30

need_gpuflame
need graph
runs=$KIT_STEP/graph
KIT_VERIFY=0
[ -f "$bin/probe.so" ] && under_probe witness "$runs/witness" "$bin/graph"
under_gpuflame "$runs/gpuflame" "$bin/graph"
rc=$?
[ $rc = 75 ] && skip "graphs: $(tail -n 1 "$runs/gpuflame/stderr")"
runs "the graph program runs under gpuflame" $rc "$runs/gpuflame"
python "$KIT_HERE/check.py" program graph "$KIT_HERE/programs/graph.cu" "$runs/gpuflame" --witness "$runs/witness/probe.jsonl" >>"$facts"
KIT_VERIFY=1
under_gpuflame "$runs/verify" "$bin/graph"
runs "the graph program runs with GPUFLAME_VERIFY=1" $? "$runs/verify"
python "$KIT_HERE/check.py" verify graph "$runs/verify" >>"$facts"
KIT_VERIFY=0

# graph_decode captures a graph, replays it for 50 tokens, and updates it halfway. The graph has 3 layers of 8 kernels.
# Two functions each capture the graph for half of the tokens.
if [ -x "$bin/graph_decode" ]; then
    GPUFLAME_UNIT=count under_gpuflame "$KIT_STEP/decode" "$bin/graph_decode" --tokens 50 --layers 3
    runs "graph_decode runs under gpuflame" $? "$KIT_STEP/decode"
    python "$KIT_HERE/check.py" captured_by graph_decode "$KIT_STEP/decode" prepare=600 grow_cache=600 >>"$facts"
else
    missing "graph_decode: $(cat "$bin/graph_decode.why" 2>/dev/null)"
fi
exit 0
