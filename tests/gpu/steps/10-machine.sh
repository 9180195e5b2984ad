# The machine: driver, CUDA, CUPTI, GPU, CPU, kernel, container, tools
# LIMIT 90
# Every later number is worth as much as this step says about where it was taken.

first_line() { timeout 20 "$@" 2>/dev/null | head -n 1; }

fact "cpu" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
fact "cpus" "$(nproc)"
fact "memory" "$(awk '/MemTotal/ {printf "%.1f GiB", $2 / 1048576}' /proc/meminfo)"
fact "kernel" "$(uname -srm)"
fact "container" "$( (systemd-detect-virt 2>/dev/null || (grep -qs . /.dockerenv && echo docker) || sed -n 's/^Hypervisor vendor: *//p' <(lscpu 2>/dev/null)) | tr '\n' ' ')"
fact "libc" "$(first_line ldd --version)"
fact "gcc" "$(first_line gcc --version)"
fact "libgpuflame.so" "${KIT_GPUFLAME:-not found}"
[ -n "$KIT_GPUFLAME" ] && fact "libgpuflame.so, bytes and checksum" "$(wc -c <"$KIT_GPUFLAME") $(sha256sum "$KIT_GPUFLAME" | cut -c 1-16)"
if [ -n "$KIT_CLI" ]; then
    fact "gpuflame" "$(first_line "$KIT_CLI" --version)"
    [ "$KIT_SIMULATED" = 1 ] || fact "gpuflame doctor" "$(timeout 30 "$KIT_CLI" doctor 2>&1 | head -n 40)"
else
    missing "the gpuflame command: its own steps are left out"
fi

for module in torch triton jax cupy transformers numpy; do
    version=$(python -c "from importlib.metadata import version
for name in ('$module', '$module-cuda13x', '$module-cuda12x'):
    try: print(version(name)); break
    except Exception: pass" 2>/dev/null)
    fact "python $module" "${version:-not installed}"
done
fact "python" "$(first_line python3 --version)"

if [ "$KIT_SIMULATED" = 1 ]; then
    fact "gpu" "none: simulated"
    fact "driver" "simulated, CUDA ${GPUSIM_DRIVER:-13000}"
    fact "cupti" "simulated, ${GPUSIM_CUPTI_VERSION:-13.0}"
    exit 0
fi
if command -v nvidia-smi >/dev/null; then
    fact "gpu" "$(first_line nvidia-smi --query-gpu=name,memory.total,compute_cap --format=csv,noheader)"
    fact "driver" "$(first_line nvidia-smi --query-gpu=driver_version --format=csv,noheader)"
    fact "gpus" "$(timeout 20 nvidia-smi -L 2>/dev/null | wc -l)"
    fact "clocks" "$(first_line nvidia-smi --query-gpu=clocks.sm,clocks.mem,persistence_mode,mig.mode.current --format=csv,noheader)"
    fact "CUDA of the driver" "$(timeout 20 nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' | head -n 1)"
else
    missing "nvidia-smi: driver and GPU are not known"
fi
fact "nvcc" "$(timeout 20 nvcc --version 2>/dev/null | sed -n 's/.*release //p')"
command -v nvcc >/dev/null || missing "nvcc: the .cu programs are left out"
command -v ncu >/dev/null || missing "ncu: kernel times are not held against hardware counters"
fact "cupti" "${PROBE_CUPTI:-none found}"
[ -n "$PROBE_CUPTI" ] || missing "libcupti: the probe sees one only where the program brings it"
