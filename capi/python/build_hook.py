"""Adds the library, the command and the demo to the wheel. hatchling, which builds the package, runs this file.

    pip install .                                   # cargo builds the library and the command; the first build takes minutes
    PREBUILT_GPUFLAME=target/release pip install .   # uses the files in that folder, as they are
    pip install -e .                                # Python files from the clone, library and command from target/release

The wheel gets the platform tag of this machine, unless PREBUILT_GPUFLAME_PLATFORM names another platform
(`manylinux_2_17_x86_64`).
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NEEDED = ("libgpuflame.so", "gpuflame")
# The preload library for shells, which cargo builds if there is a C compiler, and the demo, which `dist/build` builds.
OPTIONAL = ("libgpuflame-preload.so", "gpuflame-demo")
NOTICES = "THIRD-PARTY.txt"


class BuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        if self.target_name != "wheel":
            return
        prebuilt = os.environ.get("PREBUILT_GPUFLAME")
        folder = os.path.abspath(prebuilt) if prebuilt else self.build()
        for name in NEEDED:
            if not os.path.isfile(os.path.join(folder, name)):
                raise SystemExit("%s is missing in %s" % (name, folder))
        if version == "editable":
            return
        machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = "py3-none-" + os.environ.get("PREBUILT_GPUFLAME_PLATFORM", machine)
        build_data["pure_python"] = False
        header = os.path.join(self.root, "include", "gpuflame.h")
        build_data["force_include"][header] = "gpuflame/include/gpuflame.h"
        self.scratch = tempfile.mkdtemp()
        for name in NEEDED + OPTIONAL:
            path = os.path.join(folder, name)
            if os.path.exists(path):
                build_data["force_include"][path if prebuilt else self.strip(path)] = "gpuflame/_bin/" + name
        if os.path.isfile(os.path.join(folder, NOTICES)):
            build_data["extra_metadata"][os.path.join(folder, NOTICES)] = NOTICES

    def finalize(self, version, build_data, artifact_path):
        shutil.rmtree(getattr(self, "scratch", ""), ignore_errors=True)

    def build(self):
        """Builds the library and the command. Returns the folder that contains the library and the command."""
        cargo = os.environ.get("CARGO") or shutil.which("cargo")
        if not cargo:
            raise SystemExit("cargo, which builds gpuflame, is not on PATH: install Rust (rustup), or a wheel of gpuflame, which "
                             "needs no compiler")
        built = subprocess.run([cargo, "build", "--release", "--locked"], cwd=self.root, stdout=sys.stderr)
        if built.returncode:
            raise SystemExit("cargo build --release failed with exit status %d; see its output above" % built.returncode)
        return os.path.join(self.root, os.environ.get("CARGO_TARGET_DIR") or "target", "release")

    def strip(self, path):
        """Copies a file without its debug information, if `strip` is installed. Returns the path of the copy."""
        copy = os.path.join(self.scratch, os.path.basename(path))
        tool = shutil.which("strip")
        if os.path.isdir(path) or not tool or subprocess.run([tool, "--strip-unneeded", "-o", copy, path]).returncode:
            print("gpuflame: strip is missing or failed; the wheel is larger than necessary", file=sys.stderr)
            return path
        return copy
