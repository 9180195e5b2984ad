"""Prints the licences of the crates that are in the files of `dist/build`, from cargo's metadata and the crates' own files."""

import json
import pathlib
import subprocess

ROOTS = {"gpuflame-cli", "gpuflame-capi", "gpusim-cuda", "gpusim-cudart", "gpusim-cupti"}
TARGET = "x86_64-unknown-linux-gnu"

words = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
metadata = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
todo = [id for id, package in packages.items() if package["name"] in ROOTS]
used = set()
while todo:
    id = todo.pop()
    if id not in used:
        used.add(id)
        linked = [to for to in nodes[id]["deps"] if any(kind["kind"] is None for kind in to["dep_kinds"])]
        todo += [to["pkg"] for to in linked]
print("gpuflame contains these crates, the standard library of Rust (MIT OR Apache-2.0), SQLite (public domain),\n"
      "and parts of LLVM's libunwind and compiler-rt (Apache-2.0 WITH LLVM-exception).")
foreign = (packages[id] for id in used if packages[id]["source"])
for package in sorted(foreign, key=lambda package: (package["name"], package["version"])):
    print("\n%s\n%s %s: %s" % ("=" * 80, package["name"], package["version"], package["license"] or package["license_file"]))
    folder = pathlib.Path(package["manifest_path"]).parent
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT")):
            print("\n-- %s\n\n%s" % (file.name, file.read_text("utf-8", "replace").rstrip()))
