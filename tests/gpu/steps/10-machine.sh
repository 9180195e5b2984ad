# Reports the machine: driver, CUDA, CUPTI, GPU, CPU, kernel, container, tools
# LIMIT 30
#
# The step `machine` reports the machine, because later measurements are useful only if their machine is known.

first_line() { timeout 10 "$@" 2>/dev/null | head -n 1; }

fact "cpu" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
fact "cpus" "$(nproc)"
fact "memory" "$(awk '/MemTotal/ {printf "%.1f GiB", $2 / 1048576}' /proc/meminfo)"
fact "kernel" "$(uname -srm)"
fact "container" "$( (systemd-detect-virt 2>/dev/null || (grep -qs . /.dockerenv && echo docker) || sed -n 's/^Hypervisor vendor: *//p' <(lscpu 2>/dev/null)) | tr '\n' ' ')"
fact "libc" "$(first_line ldd --version)"
fact "gcc" "$(first_line gcc --version)"
fact "libgpuflame.so" "${KIT_GPUFLAME:-not found}"
if [ -n "$KIT_GPUFLAME" ]; then
    fact "libgpuflame.so, bytes, checksum, date" \
        "$(wc -c <"$KIT_GPUFLAME") $(sha256sum "$KIT_GPUFLAME" | cut -c 1-16) $(date -u -r "$KIT_GPUFLAME" +%FT%TZ)"
    # The driver prints nothing if it cannot load an injected library. Therefore the kit checks that libgpuflame.so can
    # be loaded.
    why=$(within=20 python -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$KIT_GPUFLAME" 2>&1 | tail -n 1)
    holds "libgpuflame.so loads on this machine" "" "$why"
fi
if [ -n "$KIT_CLI" ]; then
    fact "gpuflame" "$(timeout 10 "$KIT_CLI" --version 2>&1 | head -n 1), built $(date -u -r "$KIT_CLI" +%FT%TZ)"
else
    missing "the gpuflame command: its own steps are left out"
fi

rm -f "$KIT_OUT"/python-with-*
for module in torch triton jax cupy transformers; do
    python=$(python_with $module)
    version=$([ -z "$python" ] || timeout 20 "$python" -c "from importlib.metadata import version
for name in ('$module', '$module-cuda13x', '$module-cuda12x', 'pytorch-$module'):
    try: print(version(name)); break
    except Exception: pass" 2>/dev/null)
    fact "python $module" "$([ -z "$python" ] && echo "in no Python here" || echo "${version:-unknown version} ($python)")"
done
fact "python" "${KIT_OWN_PYTHON:-none} $(python --version 2>&1 | head -n 1)"

if [ "$KIT_SIMULATED" = 1 ]; then
    fact "gpu" "none: simulated"
    fact "driver" "simulated, CUDA ${GPUSIM_DRIVER:-13000}"
    fact "cupti" "simulated, ${GPUSIM_CUPTI_VERSION:-13.0}"
    exit 0
fi
torch=$(python_with torch)
timeout 20 "${torch:-${KIT_OWN_PYTHON:-python3}}" "$KIT_HERE/find_cupti.py" >"$KIT_STEP/libcupti"
head -n 1 "$KIT_STEP/libcupti" >"$KIT_OUT/libcupti"
PROBE_CUPTI=$(cat "$KIT_OUT/libcupti")
if [ -n "$PROBE_CUPTI" ]; then
    fact "libcupti files" "$(cat "$KIT_STEP/libcupti")"
else
    missing "libcupti: the probe and gpuflame see one only where the program brings it"
fi
if command -v nvidia-smi >/dev/null && timeout 10 nvidia-smi -L >/dev/null 2>&1; then
    fact "gpu" "$(first_line nvidia-smi --query-gpu=name,memory.total,compute_cap --format=csv,noheader)"
    fact "driver" "$(first_line nvidia-smi --query-gpu=driver_version --format=csv,noheader)"
    fact "clocks" "$(first_line nvidia-smi --query-gpu=clocks.sm,clocks.mem,persistence_mode,mig.mode.current --format=csv,noheader)"
else
    missing "nvidia-smi: the driver's version is taken from /proc/driver/nvidia"
    fact "driver" "$(sed -n 's/^NVRM version:.*Module *\(for [^ ]* *\)\{0,1\}\([0-9][0-9.]*\).*/\2/p' /proc/driver/nvidia/version 2>/dev/null)"
fi
within=20 python "$KIT_HERE/machine.py" "$KIT_OUT/no-gpu" "$PROBE_CUPTI" >>"$facts"
case $? in 124 | 137) echo "the driver did not answer within 20 s" >"$KIT_OUT/no-gpu" ;; esac
nvcc=$(timeout 10 nvcc --version 2>/dev/null | sed -n 's/.*release //p')
fact "nvcc" "${nvcc:-none} ($(command -v nvcc))"
[ -n "$nvcc" ] || missing "nvcc: $([ -n "$KIT_PREBUILT" ] && echo "programs are those of $KIT_PREBUILT" || echo 'the .cu programs are left out')"
command -v ncu >/dev/null || missing "ncu: kernel times are not held against hardware counters"
exit 0
