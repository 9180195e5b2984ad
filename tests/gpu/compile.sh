# Functions that compile the kit's programs, either on the machine with the GPU (steps/20-build.sh) or beforehand on
# another machine (prebuild.sh). The last argument of each function is the output file. Scripts source this file with
# KIT_HERE and KIT_ROOT set. shellcheck shell=bash

# Prints one program per line: its NAME, how it links libcudart, and its SOURCE, whose path may contain spaces.
cuda_programs() {
    local program
    for program in plain streams graph tiny tiny_graph loop forks; do
        echo "$program shared $KIT_HERE/programs/$program.cu"
    done
    echo "llm_inference shared $KIT_ROOT/examples/llm_inference.cu"
    echo "graph_decode shared $KIT_ROOT/examples/graph_decode.cu"
    echo "plain_static static $KIT_HERE/programs/plain.cu"
}

probe() { gcc -shared -fPIC -std=gnu11 -O2 -g -Wall -Wextra "$KIT_HERE"/probe/*.c -ldl -lpthread -o "$1"; }

driver() { gcc -std=gnu11 -g -O2 -Wall -Wextra "$KIT_HERE/programs/driver.c" -ldl -o "$1"; }

# cuda_with SHARED|STATIC SOURCE FLAGS.. OUT
cuda_with() {
    local linked=$1 source=$2 out=${*: -1}
    timeout -k 5 100 nvcc -g -O2 -lineinfo -Xcompiler -Wall,-Wextra -cudart "$linked" "${@:3:$#-3}" "$source" -lpthread -o "$out"
}

# Compiles machine code for this machine's GPU. The program's run path (rpath) leads to nvcc's own libcudart, because on
# some machines the loader does not find this library. If nvcc fails (a newer gcc, a newer GPU, no shared libcudart),
# the function tries other compiler options.
cuda_here() { # SHARED|STATIC SOURCE OUT
    local linked=$1 source=$2 out=$3 toolkit libraries=() folder
    command -v nvcc >/dev/null || { echo "error: nvcc is missing"; return 1; }
    toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    for folder in "$toolkit/lib64" "$toolkit/targets/x86_64-linux/lib" "$toolkit/lib"; do
        [ -d "$folder" ] && libraries+=("-L$folder" -Xlinker "-rpath=$folder")
    done
    cuda_with "$linked" "$source" -arch=native "${libraries[@]}" "$out" ||
        cuda_with "$linked" "$source" -arch=native -allow-unsupported-compiler "${libraries[@]}" "$out" ||
        cuda_with static "$source" -arch=native -allow-unsupported-compiler "$out" ||
        cuda_with static "$source" -gencode arch=compute_75,code=compute_75 -allow-unsupported-compiler "$out"
}

# Compiles for a run on another machine: machine code for Hopper, and PTX for earlier and later GPUs. The CUDA runtime
# is linked statically, because the machine with the GPU may have no libcudart. Therefore `plain` and `plain_static` are
# the same program in this case.
cuda_elsewhere() { # SOURCE OUT
    cuda_with static "$1" -gencode arch=compute_75,code=compute_75 -gencode 'arch=compute_90,code=[sm_90,compute_90]' "$2"
}

# Prints, in one line, the reason why a compiler failed.
reason() {
    { grep -m 1 -i error "$1" || tail -n 1 "$1" || true; } | sed "s|$KIT_HERE/||g" | head -c 500 | grep . ||
        echo "the compiler said nothing, or was cut off"
}
