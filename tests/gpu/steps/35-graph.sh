# Right: CUDA graphs, captured, instantiated twice, updated, and built by hand
# LIMIT 60

need_gpuflame
need graph
runs=$KIT_STEP/graph
KIT_VERIFY=0
[ -f "$bin/probe.so" ] && under_probe witness "$runs/witness" "$bin/graph"
under_gpuflame "$runs/gpuflame" "$bin/graph"
rc=$?
[ $rc = 75 ] && skip "graphs: $(tail -n 1 "$runs/gpuflame/stderr")"
holds "the graph program runs under gpuflame" 0 $rc
python "$KIT_HERE/check.py" program graph "$KIT_HERE/programs/graph.cu" "$runs/gpuflame" --witness "$runs/witness/probe.jsonl" >>"$facts"
KIT_VERIFY=1
under_gpuflame "$runs/verify" "$bin/graph" && python "$KIT_HERE/check.py" verify graph "$runs/verify" >>"$facts"
exit 0
