"""Builds stand-ins for the libraries in NVIDIA's packages. The stand-ins have the functions that the wheel's own
libraries call.

    stand_ins.py FOLDER VERSION              FOLDER has the installed wheel; fills FOLDER/stand-ins
    stand_ins.py --check FOLDER LIBRARIES    checks that the simulated libraries there have all functions that the wheel's call

A function that has no implementation in stand_ins/*.c fails, and its first call prints its name. Every problem ends the
script with one line and exit code 2.
"""

import hashlib
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent / "stand_ins"

# Each library has three values: its soname, the version node of its functions, and the return value of functions
# without an implementation. If a library has no version node, a prefix of the functions' names takes its place.
LIBRARIES = [
    ("libcublas.so.13", "libcublas.so.13", None, 15),
    ("libcublasLt.so.13", "libcublasLt.so.13", None, 15),
    ("libcudnn.so.9", "libcudnn.so.9", None, 3000),
    ("libcusparse.so.12", "libcusparse.so.12", None, 10),
    ("libcusparseLt.so.0", None, "cusparseLt", 10),
    ("libcufft.so.12", "libcufft.so.12", None, 16),
    ("libcusolver.so.12", "libcusolver.so.12", None, 8),
    ("libnvrtc.so.13", "libnvrtc.so.13", None, 11),
    ("libnvshmem_host.so.3", "NVSHMEM", None, 7),
    ("libcufile.so.0", None, "cuFile", 5001),
    ("libnccl.so.2", None, "nccl", 3),
]

# Libraries that tests/gpusim itself simulates.
SIMULATED = ("libcudart.so.13", "libcupti.so.13")


def fail(text):
    sys.exit(print(f"pytorch: {text}", file=sys.stderr) or 2)


def names(library, which):
    """Yields the dynamic symbols of a library as (name, version)."""
    out = subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@")


def check_wheel(torch, pinned):
    if not (torch / "version.py").is_file():
        fail(f"{torch} holds no PyTorch: remove the folder, and tests/pytorch/install brings it anew")
    told = (torch / "version.py").read_text()
    version = re.search(r"__version__ = '([^']*)'", told)[1]
    if version.split("+")[0] != pinned:
        fail(f"{torch} holds torch {version}, and not {pinned}: remove the folder, and tests/pytorch/install brings it")
    if not re.search(r"^cuda.* = '13", told, re.M) or not (torch / "lib/libtorch_cuda.so").is_file():
        fail(f"torch {version} in {torch} is not built for CUDA 13: remove the folder, and see which index pip asks")


def source_of(soname, functions, written, code):
    """Returns C code for the functions that a library needs and that no source file implements."""
    rest = sorted(functions - written)
    macro = "KERNEL" if soname == "libcublas.so.13" else "MISSING"
    lines = [f'#define SONAME "{soname}"', f"#define CODE {code}", '#include "missing.h"']
    lines += [f"{macro if 'Async' not in name else 'MISSING'}({name})" for name in rest]
    return "\n".join(lines) + "\n"


def build(folder, soname, node, functions, code):
    own = HERE / (soname.removeprefix("lib").split(".")[0] + ".c")
    written = set(re.findall(r"^(?:[A-Z_]+\(|size_t |const char \*)(\w+)", own.read_text(), re.M)) if own.is_file() else set()
    made = folder / f"{soname}.c"
    made.write_text(source_of(soname, functions, written, code))
    command = ["gcc", "-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-s", f"-I{HERE}", "-w"]
    command += [f"-Wl,-soname,{soname}", "-o", str(folder / f".{soname}"), str(made)]
    command += [str(own)] if own.is_file() else []
    if node:
        version = folder / f"{soname}.map"
        version.write_text(f"{node} {{ global: *; }};\n")
        command.append(f"-Wl,--version-script={version}")
    result = subprocess.run(command + ["-ldl"], capture_output=True, text=True)
    if result.returncode != 0:
        fail(f"{soname} does not build: {result.stderr.strip().splitlines()[0]}")
    (folder / f".{soname}").rename(folder / soname)


def main(folder, pinned):
    torch = next(folder.glob("lib/python3*/site-packages"), folder) / "torch"
    check_wheel(torch, pinned)
    stand_ins = folder / "stand-ins"
    stand_ins.mkdir(exist_ok=True)
    sources = b"".join(path.read_bytes() for path in sorted(HERE.iterdir())) + pathlib.Path(__file__).read_bytes()
    made = hashlib.sha256(sources).hexdigest()
    if (stand_ins / "made").is_file() and (stand_ins / "made").read_text() == made:
        return
    called = {symbol for library in (torch / "lib").glob("lib*.so") for symbol in names(library, "--undefined-only")}
    of_cuda = [f"{name} {version}\n" for name, version in sorted(called) if version in SIMULATED]
    (stand_ins / "cuda-functions").write_text("".join(of_cuda))
    for soname, node, prefix, code in LIBRARIES:
        of_this = lambda name, version: version == node if node else not version and name.startswith(prefix)
        functions = {name for name, version in called if of_this(name, version)}
        build(stand_ins, soname, node, functions, code)
    (stand_ins / "made").write_text(made)


def check(folder, libraries):
    for line in (folder / "stand-ins/cuda-functions").read_text().splitlines():
        name, soname = line.split()
        exported = EXPORTED.setdefault(soname, {name for name, _ in names(libraries / soname, "--defined-only")})
        if name not in exported:
            fail(f"the wheel calls {name} of {soname}, which tests/gpusim lacks: it is to be written there")


EXPORTED = {}
if sys.argv[1] == "--check":
    check(*map(pathlib.Path, sys.argv[2:]))
else:
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
