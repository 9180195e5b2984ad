#!/usr/bin/env bash
# Checks gpuflame's CUPTI bindings and its unwinder against NVIDIA's own files, without a GPU and without a driver. The
# checks are:
#   1. every field offset against the headers of each release (compiled C assertions);
#   2. gpuflame's walk over activity buffers, against the real library's cuptiActivityGetNextRecord;
#   3. which API calls gpuflame's name pattern selects from the names that the real library lists;
#   4. stacks through the real runtime library, against libgcc's.
# Run this script by hand: it downloads about 100 MB from PyPI into a scratch folder. The downloads are never committed.
#
#   tests/cupti-wheels.sh [SCRATCH]      needs pip, unzip, a C compiler; SCRATCH keeps the downloads
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=${1:-}
if [ -z "$scratch" ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
fi
mkdir -p "$scratch"

# Each release has the package with CUPTI, the packages with CUDA's headers, and whether its library can be called
# without a driver. (No package before 13.0 has the `crt` folder, so a later package provides it.)
releases=(
  "nvidia-cuda-cupti-cu11==11.8.87  nvidia-cuda-runtime-cu11==11.8.89  nvidia-cuda-crt==13.0.88  walk"
  "nvidia-cuda-cupti-cu12==12.0.90  nvidia-cuda-runtime-cu12==12.0.107 nvidia-cuda-crt==13.0.88  walk"
  "nvidia-cuda-cupti-cu12==12.2.142 nvidia-cuda-runtime-cu12==12.2.140 nvidia-cuda-crt==13.0.88  walk"
  "nvidia-cuda-cupti-cu12==12.4.127 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-crt==13.0.88  walk"
  "nvidia-cuda-cupti-cu12==12.8.90  nvidia-cuda-runtime-cu12==12.8.90  nvidia-cuda-crt==13.0.88  walk"
  "nvidia-cuda-cupti-cu12==12.9.79  nvidia-cuda-runtime-cu12==12.9.79  nvidia-cuda-crt==13.0.88  walk"
  "nvidia-cuda-cupti==13.0.85       nvidia-cuda-runtime==13.0.96       nvidia-cuda-crt==13.0.88  walk"
  "nvidia-cuda-cupti==13.1.115      nvidia-cuda-runtime==13.1.80       nvidia-cuda-crt==13.1.115 walk"
  "nvidia-cuda-cupti==13.3.75       nvidia-cuda-runtime==13.3.29       nvidia-cuda-crt==13.3.73  -"
  "nvidia-cuda-cupti==13.4.92       nvidia-cuda-runtime==13.4.92       nvidia-cuda-crt==13.4.92  -"
  "nvidia-cuda-cupti==13.5.25       nvidia-cuda-runtime==13.5.37       nvidia-cuda-crt==13.5.37  -"
)

# Unpacks a wheel into a separate folder below $scratch, and prints that folder.
unpack() {
  local folder="$scratch/${1//==/-}"
  if [ ! -d "$folder" ]; then
    python3 -m pip download -q --no-deps --only-binary=:all: -d "$scratch/wheels" "$1" >&2
    unzip -q "$(ls -t "$scratch"/wheels/"$(tr - _ <<<"${1%%==*}")"-"${1##*==}"-*.whl | head -n 1)" -d "$folder"
  fi
  echo "$folder"
}

# checks CHECK PREFIX FROM HEADERS: writes one assertion for each struct PREFIX<n> in the headers, from n = FROM on.
checks() {
  { grep -ohE "\b$2[0-9]+\b" "$4"/cupti_activity*.h || true; } | sort -u | while read -r struct; do
    [ "${struct#"$2"}" -lt "$3" ] || echo "CHECK_$1($struct);"
  done
}

assertions() {
  cat "$scratch/layout.h"
  echo '#include <cupti.h>'
  checks Kernel CUpti_ActivityKernel 8 "$1"
  checks KernelChannel CUpti_ActivityKernel 7 "$1"
  checks KernelCluster CUpti_ActivityKernel 8 "$1"
  checks KernelDeviceLaunched CUpti_ActivityKernel 10 "$1"
  checks KernelPriority CUpti_ActivityKernel 11 "$1"
  checks KernelSource CUpti_ActivityKernel 13 "$1"
  checks Memcpy CUpti_ActivityMemcpy 5 "$1"
  checks MemcpyChannel CUpti_ActivityMemcpy 5 "$1"
  checks MemcpyCount CUpti_ActivityMemcpy 6 "$1"
  checks MemcpySource CUpti_ActivityMemcpy 7 "$1"
  checks MemcpyPeer CUpti_ActivityMemcpyPtoP 4 "$1"
  checks MemcpyPeerChannel CUpti_ActivityMemcpyPtoP 4 "$1"
  checks Memset CUpti_ActivityMemset 4 "$1"
  checks MemsetChannel CUpti_ActivityMemset 4 "$1"
  checks MemsetSource CUpti_ActivityMemset 5 "$1"
  checks Synchronization CUpti_ActivitySynchronization 2 "$1"
  checks CudaEvent CUpti_ActivityCudaEvent 2 "$1"
  checks SynchronizationLate CUpti_ActivitySynchronization 2 "$1"
  checks CudaEventSync CUpti_ActivityCudaEvent 2 "$1"
  checks UnifiedMemoryCounter CUpti_ActivityUnifiedMemoryCounter 2 "$1"
  checks GraphTrace CUpti_ActivityGraphTrace 2 "$1"
  echo 'CHECK_UnifiedMemoryConfig(CUpti_ActivityUnifiedMemoryCounterConfig);'
  echo 'CHECK_Synchronization(CUpti_ActivitySynchronization); CHECK_CudaEvent(CUpti_ActivityCudaEvent);'
  echo 'CHECK_GraphTrace(CUpti_ActivityGraphTrace); CHECK_ApiCall(CUpti_ActivityAPI);'
  echo 'CHECK_ExternalCorrelation(CUpti_ActivityExternalCorrelation);'
  echo 'CHECK_CallbackData(CUpti_CallbackData); CHECK_ResourceData(CUpti_ResourceData);'
  echo 'CHECK_GraphData(CUpti_GraphData); CHECK_ModuleResourceData(CUpti_ModuleResourceData);'
  echo 'CHECK_SynchronizeData(CUpti_SynchronizeData);'
  grep -q CUpti_StateData "$1"/cupti_callbacks.h && echo 'CHECK_StateData(CUpti_StateData);'
  grep -q allowMultipleSubscribers "$1"/cupti_callbacks.h && echo 'CHECK_SubscriberParams(CUpti_SubscriberParams);'
  true
}

cargo run -q -p cupti-sys --example layout >"$scratch/layout.h"
failed=0
for release in "${releases[@]}"; do
  read -r -a words <<<"$release"
  cupti=$(unpack "${words[0]}")
  headers=$(dirname "$(find "$cupti" -name cupti.h)")
  includes=("-I$headers")
  for package in "${words[@]:1:${#words[@]}-2}"; do
    includes+=("-I$(find "$(unpack "$package")" -type d -name include | head -n 1)")
  done

  assertions "$headers" >"$scratch/assertions.c"
  count=$(grep -cE '^CHECK_' "$scratch/assertions.c")
  if ${CC:-cc} -std=c11 -w -fsyntax-only "${includes[@]}" "$scratch/assertions.c"; then
    echo "${words[0]}: layouts agree ($count lines of checks)"
  else
    echo "${words[0]}: LAYOUTS DIFFER" && failed=1
  fi

  cudart=$(find "$(unpack "${words[1]}")" -name 'libcudart.so.*')
  if ! GPUFLAME_TEST_CUDART="$cudart" cargo test -q -p gpuflame-unwind --test unwind_real -- --ignored --nocapture; then
    echo "${words[1]}: STACKS THROUGH THE REAL LIBRARY DIFFER" && failed=1
  fi

  [ "${words[-1]}" = walk ] || continue
  library=$(find "$cupti" -name 'libcupti.so.*')
  if ! GPUFLAME_TEST_CUPTI="$library" cargo test -q -p gpuflame-cupti --lib real -- --ignored --nocapture; then
    echo "${words[0]}: THE REAL LIBRARY DISAGREES" && failed=1
  fi
done
exit "$failed"
