"""Builds the wheel: the Python files, and the shared library and the command, which cargo builds.

    pip install ./capi/python                        # builds both in release mode; the first build takes minutes
    pip install -C built=target/release ./capi/python    # uses the files in that folder
    pip install -e ./capi/python                     # Python files from here, library and command from target/release

The wheel works with every Python 3. Its platform tag names the glibc version that its files require, as read from the files.
The build needs no Python package.
"""

import base64
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILT = ("libgpuflame.so", "gpuflame")

# What every Linux has that the manylinux tags are about.
COMMON = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "ld-linux-x86-64.so.2",
          "ld-linux-aarch64.so.1"}
MACHINES = {62: "x86_64", 183: "aarch64"}


def get_requires_for_build_wheel(config_settings=None):
    return []


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    folder = built_files(config_settings)
    with tempfile.TemporaryDirectory() as scratch:
        binaries = {name: strip(os.path.join(folder, name), os.path.join(scratch, name)) for name in BUILT}
        binaries.update(optional_binaries(folder))
        wheel = Wheel(wheel_directory, tag(binaries.values()))
        for package in ("gpuflame", "chakra_trace"):
            wheel.package(package)
        for name, path in binaries.items():
            wheel.file("gpuflame/_bin/" + name, path, executable=True)
        wheel.file("gpuflame/include/gpuflame.h", os.path.join(ROOT, "include", "gpuflame.h"))
        notices = os.path.join(folder, "THIRD-PARTY.txt")
        if os.path.isfile(notices):
            wheel.file(wheel.info + "THIRD-PARTY.txt", notices)
        return wheel.close()


def optional_binaries(folder):
    """Returns the library for shells, which cargo builds if there is a C compiler, and the demo, which `dist/build` builds."""
    demo = os.path.join(folder, "gpuflame-demo")
    names = ["gpuflame-demo/" + name for name in sorted(os.listdir(demo))] if os.path.isdir(demo) else []
    preload = "libgpuflame-preload.so"
    names += [preload] if os.path.isfile(os.path.join(folder, preload)) else []
    return {name: os.path.join(folder, name) for name in names}


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    folder = built_files(config_settings)
    wheel = Wheel(wheel_directory, tag([os.path.join(folder, name) for name in BUILT]))
    wheel.text("gpuflame-editable.pth", os.path.join(HERE, "src") + "\n")
    return wheel.close()


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("gpuflame is built from a clone of its repository: pip install ./capi/python")


def built_files(config_settings):
    """Returns the folder with the library and the command. cargo builds them, unless `-C built=FOLDER` names the folder."""
    given = (config_settings or {}).get("built")
    folder = os.path.abspath(given) if given else os.path.join(target_folder(), "release")
    if not given:
        cargo = os.environ.get("CARGO") or shutil.which("cargo")
        if not cargo:
            raise SystemExit("cargo, which builds gpuflame, is not on PATH: install Rust (rustup), or name a folder with "
                             "libgpuflame.so and gpuflame: pip install -C built=FOLDER ./capi/python")
        built = subprocess.run([cargo, "build", "--release", "--locked"], cwd=ROOT, stdout=sys.stderr)
        if built.returncode:
            raise SystemExit("cargo build --release failed with exit status %d; see its output above" % built.returncode)
    for name in BUILT:
        if not os.path.isfile(os.path.join(folder, name)):
            raise SystemExit("%s is missing in %s" % (name, folder))
    return folder


def target_folder():
    return os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR") or "target")


def strip(path, to):
    """Copies a file without its debug information, if `strip` is installed. Returns the path of the copy."""
    shutil.copyfile(path, to)
    os.chmod(to, 0o755)
    tool = shutil.which("strip")
    if not tool or subprocess.run([tool, "--strip-unneeded", to], stderr=subprocess.DEVNULL).returncode:
        print("gpuflame: strip is missing or failed; the wheel is larger than necessary", file=sys.stderr)
        shutil.copyfile(path, to)
    return to


class Wheel:
    """Writes a wheel; see https://peps.python.org/pep-0427/."""

    def __init__(self, folder, platform):
        self.version = version()
        self.name = "gpuflame-%s-py3-none-%s.whl" % (self.version, platform)
        self.info = "gpuflame-%s.dist-info/" % self.version
        self.records = []
        self.zip = zipfile.ZipFile(os.path.join(folder, self.name), "w", zipfile.ZIP_DEFLATED)
        self.platform = platform

    def package(self, name):
        top = os.path.join(HERE, "src", name)
        for folder, folders, files in os.walk(top):
            folders[:] = sorted(set(folders) - {"__pycache__", "_bin"})
            for file in sorted(files):
                path = os.path.join(folder, file)
                self.file(name + "/" + os.path.relpath(path, top).replace(os.sep, "/"), path)

    def file(self, name, path, executable=False):
        with open(path, "rb") as file:
            self.write(name, file.read(), executable)

    def text(self, name, text):
        self.write(name, text.encode())

    def write(self, name, content, executable=False):
        self.add(name, content, executable)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.records.append("%s,sha256=%s,%d" % (name, digest, len(content)))

    def add(self, name, content, executable=False):
        entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same content makes the same wheel
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        self.zip.writestr(entry, content)

    def close(self):
        with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
            readme = file.read()
        self.text(self.info + "METADATA", METADATA % (self.version, repository(), readme))
        self.text(self.info + "WHEEL", "Wheel-Version: 1.0\nGenerator: gpuflame\nRoot-Is-Purelib: false\nTag: py3-none-%s\n"
                  % self.platform)
        self.text(self.info + "entry_points.txt", "[console_scripts]\ngpuflame = gpuflame.__main__:main\n")
        self.text(self.info + "top_level.txt", "gpuflame\nchakra_trace\n")
        for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
            self.file(self.info + licence, os.path.join(ROOT, licence))
        self.records.append(self.info + "RECORD,,\n")
        self.add(self.info + "RECORD", "\n".join(self.records))
        self.zip.close()
        return self.name


METADATA = """\
Metadata-Version: 2.1
Name: gpuflame
Version: %s
Summary: GPU flame graphs: every nanosecond of GPU time under the CPU stack that launched it
License: MIT OR Apache-2.0
Project-URL: Source, %s
Requires-Python: >=3.9
Provides-Extra: arrow
Requires-Dist: pyarrow; extra == "arrow"
Description-Content-Type: text/markdown

%s"""


def of_cargo(key):
    with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as file:
        return re.search(r'(?ms)^\[workspace\.package\]$.*?^%s = "([^"]*)"' % key, file.read()).group(1)


def version():
    return of_cargo("version")


def repository():
    return of_cargo("repository")


def tag(paths):
    """Returns the platform tag: `manylinux_2_NN_MACHINE`, where NN is the newest glibc version that a file requires."""
    newest, machine, strangers = 0, None, set()
    for path in paths:
        elf = Elf(path)
        machine = MACHINES[elf.machine]
        strangers |= elf.needed - COMMON
        for name in elf.versions:
            found = re.match(r"GLIBC_2\.(\d+)", name)
            newest = max(newest, int(found.group(1)) if found else 0)
    return "linux_" + machine if strangers else "manylinux_2_%d_%s" % (newest, machine)


class Elf:
    """Requirements of a 64-bit little-endian ELF file: names of libraries, and versions of symbols."""

    DYNAMIC, NEEDS = 6, 0x6FFFFFFE

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise SystemExit("%s is not an ELF file for this machine" % path)
        self.machine, = struct.unpack_from("<H", self.data, 18)
        self.needed, self.versions = set(), set()
        start, = struct.unpack_from("<Q", self.data, 40)
        size, count = struct.unpack_from("<HH", self.data, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.data, start + n * size) for n in range(count)]
        for _, kind, _, _, at, length, link, entries, _, _ in headers:
            strings = headers[link][4] if link < len(headers) else 0
            if kind == self.DYNAMIC:
                for place in range(at, at + length, 16):
                    what, value = struct.unpack_from("<QQ", self.data, place)
                    if what == 1:  # DT_NEEDED
                        self.needed.add(self.text(strings + value))
            elif kind == self.NEEDS:
                for _ in range(entries):
                    _, count, _, first, after = struct.unpack_from("<HHIII", self.data, at)
                    place = at + first
                    for _ in range(count):
                        _, _, _, name, next_one = struct.unpack_from("<IHHII", self.data, place)
                        self.versions.add(self.text(strings + name))
                        place += next_one
                    at += after

    def text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode()
