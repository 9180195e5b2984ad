"""Prints the licences of the libraries in the files of `dist/build`, from cargo's metadata and the crates' own files.

    python3 dist/notices.py ZIG > THIRD-PARTY.txt

ZIG is the folder of the Python package `ziglang`, which contains the licence of the linked libunwind. A text that several
crates have is printed only once.
"""

import json
import pathlib
import subprocess
import sys

ROOTS = {"gpuflame-cli", "gpuflame-capi", "gpusim-cuda", "gpusim-cudart", "gpusim-cupti"}
TARGET = "x86_64-unknown-linux-gnu"
NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE")
RULE = "=" * 80


def linked_packages():
    """Returns the metadata of all crates from other projects that are linked into gpuflame's files."""
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
    foreign = (packages[id] for id in used if packages[id]["source"])
    return sorted(foreign, key=lambda package: (package["name"], package["version"]))


def licence_files(folder):
    """Returns the files with a crate's licences and notices. Licences and notices are in the crate's folder or in its
    folder of licences."""
    files = [file for file in folder.iterdir() if file.is_file() and file.name.upper().startswith(NAMES)]
    for name in ("LICENSES", "licenses"):
        files += [file for file in (folder / name).glob("*") if file.is_file()]
    return sorted(set(files))


printed = {}


def print_text(file, owner):
    """Prints the text of a licence. If this text was printed for another crate, prints the name of that crate instead."""
    text = file.read_text("utf-8", "replace").rstrip()
    words = " ".join(text.split())
    if words in printed:
        print("\n-- %s: the text that is listed above as %s" % (file.name, printed[words]))
    else:
        printed[words] = "%s of %s" % (file.name, owner)
        print("\n-- %s\n\n%s" % (file.name, text))


def main():
    print("gpuflame contains the crates below, the standard library of Rust (MIT OR Apache-2.0), SQLite (public domain),\n"
          "and parts of LLVM's libunwind and compiler-rt (Apache-2.0 WITH LLVM-exception).")
    print("\n%s\nlibunwind: Apache-2.0 WITH LLVM-exception" % RULE)
    print_text(pathlib.Path(sys.argv[1]) / "lib" / "libunwind" / "LICENSE.TXT", "libunwind")
    for package in linked_packages():
        owner = "%s %s" % (package["name"], package["version"])
        print("\n%s\n%s: %s" % (RULE, owner, package["license"] or package["license_file"]))
        files = licence_files(pathlib.Path(package["manifest_path"]).parent)
        if not files:
            authors = ", ".join(author.split(" <")[0] for author in package["authors"])
            print("\nThe crate has no licence file. Authors: %s. LICENSE-APACHE and LICENSE-MIT of gpuflame have the texts."
                  % (authors or package["repository"]))
        for file in files:
            print_text(file, owner)


main()
