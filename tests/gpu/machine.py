"""Writes facts about the driver, the GPUs and libcupti for the report, without nvidia-smi or a toolkit.

    machine.py FILE-FOR-NO-GPU [LIBCUPTI]
    machine.py --hold SECONDS

If no GPU can be used, the script writes the reason to FILE-FOR-NO-GPU. The script creates no CUDA context and changes
no setting. --hold keeps the driver in use for SECONDS. Without persistence mode, the driver shuts the GPU down between
two programs, and each program then waits some seconds for the GPU."""

import ctypes
import json
import os
import sys
import time


def fact(name, value):
    print(json.dumps({"fact": name, "value": value}), flush=True)


def driver():
    """Returns the reason why no GPU can be used, or None."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"libcuda.so.1: {error}"
    version, count = ctypes.c_int(), ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
        fact("CUDA of libcuda", f"{version.value // 1000}.{version.value % 1000 // 10}")
    result = cuda.cuInit(0)
    if result:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(result, ctypes.byref(name))
        return f"cuInit answers {result} ({(name.value or b'?').decode()})"
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for number in range(count.value):
        device, text, values = ctypes.c_int(), ctypes.create_string_buffer(256), []
        cuda.cuDeviceGet(ctypes.byref(device), number)
        cuda.cuDeviceGetName(text, 256, device)
        for attribute in (75, 76, 16):  # compute capability, multiprocessors
            value = ctypes.c_int()
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            values.append(value.value)
        fact(f"GPU {number} by libcuda", "{}, compute capability {}.{}, {} multiprocessors".format(text.value.decode(), *values))
    return None if count.value else "cuDeviceGetCount answers 0"


def cupti(path):
    try:
        version = ctypes.c_uint32()
        result = ctypes.CDLL(path).cuptiGetVersion(ctypes.byref(version))
        fact("CUPTI version", version.value if result == 0 else f"cuptiGetVersion answers {result}")
    except (OSError, AttributeError) as error:
        fact("CUPTI version", f"{path}: {error}")
    fact("CUPTI, the file", os.path.realpath(path))


if __name__ == "__main__":
    if sys.argv[1] == "--hold":
        if ctypes.CDLL("libcuda.so.1").cuInit(0) == 0:
            time.sleep(float(sys.argv[2]))
        sys.exit()
    reason = driver()
    if reason:
        fact("gpu", f"none: {reason}")
        with open(sys.argv[1], "w") as file:
            file.write(reason)
    if len(sys.argv) > 2 and sys.argv[2]:
        cupti(sys.argv[2])
