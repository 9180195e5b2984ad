"""Prints the paths of the libcupti files on this machine, one per line, best first. The order is: the toolkit of the
nvcc on PATH, other toolkits, LD_LIBRARY_PATH, the system, and the packages that PyTorch and JAX installed for this
Python."""

import glob
import os
import shutil
import sys

nvcc = shutil.which("nvcc")
toolkits = [os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))] if nvcc else []
toolkits += [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
toolkits += ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True), "/opt/cuda"]
folders = [f"{toolkit}/{inside}" for toolkit in toolkits
           for inside in ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")]
folders += [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
folders += [f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64"]
folders += [f"{folder}/{inside}" for folder in sys.path + sys.argv[1:]
            for inside in ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib")]
seen = set()
for folder in folders:
    for path in sorted(glob.glob(f"{folder}/libcupti.so.1[0-9]*"), key=len):
        if os.path.realpath(path) not in seen:
            seen.add(os.path.realpath(path))
            print(path)
