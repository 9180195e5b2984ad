# Functions that compile the kit's programs, on the GPU's machine (steps/20-build.sh) or on another machine before that
# (prebuild.sh). Each function takes the file to make as its last argument. The file is sourced, with KIT_HERE and
# KIT_ROOT set.
# shellcheck shell=bash

# Prints one program per line: its NAME, how libcudart is linked, and its SOURCE, which may contain spaces.
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

# Compiles on the GPU's machine: machine code for its GPU. The run path is that of nvcc's own libcudart, because on some
# machines the loader does not find this library. If this nvcc cannot compile in this way (a newer gcc, a newer GPU, no shared
# libcudart), other ways are tried.
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

# Compiles before the run, on another machine: machine code for Hopper, and PTX for earlier and later GPUs. The runtime is
# linked statically, because the GPU's machine may have none. So `plain` and `plain_static` are the same.
cuda_elsewhere() { # SOURCE OUT
    cuda_with static "$1" -gencode arch=compute_75,code=compute_75 -gencode 'arch=compute_90,code=[sm_90,compute_90]' "$2"
}

# Prints in one line why a compiler failed.
reason() {
    { grep -m 1 -i error "$1" || tail -n 1 "$1" || true; } | sed "s|$KIT_HERE/||g" | head -c 500 | grep . ||
        echo "the compiler said nothing, or was cut off"
}
