# Builds the programs and the probe
# LIMIT 240
# What does not build leaves its reason in bin/NAME.why, which the steps that need it report.

mkdir -p "$bin"
rm -f "$bin/done"

if [ "$KIT_SIMULATED" = 1 ]; then
    (cd "$KIT_ROOT" && tests/gpusim/run --stage "$KIT_OUT/sim") >/dev/null || exit 1
fi

# build NAME COMMAND..: what makes bin/NAME.
build() {
    local name=$1
    shift
    rm -f "$bin/$name" "$bin/$name.why"
    if timeout -k 5 100 "$@" -o "$bin/$name" >"$bin/$name.log" 2>&1; then
        fact "built" "$name"
        return
    fi
    rm -f "$bin/$name"
    (grep -m 1 -i error "$bin/$name.log" || tail -n 1 "$bin/$name.log") | sed "s|$KIT_HERE/||g" | head -c 500 >"$bin/$name.why"
    [ -s "$bin/$name.why" ] || echo "the compiler said nothing, or was cut off" >"$bin/$name.why"
    missing "$name: $(cat "$bin/$name.why")"
}

# Machine code for this GPU; where nvcc sees none, PTX that the driver compiles.
arch=(-arch=native)
timeout 20 nvidia-smi -L >/dev/null 2>&1 || arch=(-gencode "arch=compute_75,code=compute_75")

cuda() { # NAME SOURCE [FLAGS..]
    local name=$1 source=$2
    shift 2
    if [ "$KIT_SIMULATED" = 1 ]; then
        build "$name" gcc -x c -std=gnu11 -g -O2 -Wall -Wextra -Werror -I "$KIT_ROOT/tests/gpusim/include" "$KIT_HERE/programs/$source" \
            -x none -L "$KIT_OUT/sim" -lcudart -lpthread
    elif command -v nvcc >/dev/null; then
        build "$name" nvcc -g -O2 -lineinfo "${arch[@]}" -cudart shared "$@" "$KIT_HERE/programs/$source" -lpthread
    else
        echo "nvcc is missing" >"$bin/$name.why"
    fi
}

build probe.so gcc -shared -fPIC -std=gnu11 -O2 -g -Wall -Wextra "$KIT_HERE"/probe/*.c -ldl -lpthread &
build driver gcc -std=gnu11 -g -O2 -Wall -Wextra "$KIT_HERE/programs/driver.c" -ldl &
wait
for program in plain streams graph tiny tiny_graph loop forks; do
    cuda $program $program.cu &
    # As many compilers at once as there are processors.
    [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n
done
wait
if [ "$KIT_SIMULATED" = 1 ]; then
    build llm_inference gcc -std=c99 -O2 -g "$KIT_ROOT/examples/llm_inference.c" -isystem "$KIT_ROOT/tests/gpusim/include" \
        -L "$KIT_OUT/sim" -lcudart -lpthread -lm
elif command -v nvcc >/dev/null; then
    build plain_static nvcc -g -O2 "${arch[@]}" -cudart static "$KIT_HERE/programs/plain.cu" -lpthread &
    build llm_inference nvcc -g -O2 -lineinfo "${arch[@]}" -cudart shared "$KIT_ROOT/examples/llm_inference.cu" -lpthread
    wait
fi
touch "$bin/done"
[ -f "$bin/probe.so" ]
