#!/usr/bin/env bash
# Installs the results of `cargo build --release` where C and C++ programs find them.
#
#     capi/install.sh PREFIX [FOLDER]      FOLDER contains the build; default: target/release
#
# Installs bin/gpuflame, include/gpuflame.h, lib/libgpuflame.so, lib/libgpuflame-preload.so, and files for pkg-config and CMake
# into PREFIX, which can be moved later. If DESTDIR is set, it is prepended to PREFIX.
set -euo pipefail
if (($# < 1 || $# > 2)); then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
prefix=${DESTDIR-}$1
built=${2-$root/target/release}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
url=$(sed -n '/^\[workspace.package\]/,/^\[/s/^repository = "\(.*\)"/\1/p' "$root/Cargo.toml")
for file in libgpuflame.so libgpuflame-preload.so gpuflame; do
    [[ -f $built/$file ]] || { echo "install.sh: $built/$file is missing; run cargo build --release" >&2; exit 1; }
done

lib=$prefix/lib
mkdir -p "$prefix/bin" "$prefix/include" "$lib/pkgconfig" "$lib/cmake/gpuflame"
install -m 755 "$built/gpuflame" "$prefix/bin/"
install -m 644 "$root/include/gpuflame.h" "$prefix/include/"
install -m 755 "$built/libgpuflame.so" "$lib/libgpuflame.so.$version"
ln -sf "libgpuflame.so.$version" "$lib/libgpuflame.so.0"
ln -sf libgpuflame.so.0 "$lib/libgpuflame.so"
install -m 755 "$built/libgpuflame-preload.so" "$lib/"
# `dist/build` makes the folder gpuflame-demo, which contains the program that `gpuflame demo` runs and the simulated
# CUDA stack.
if [[ -d $built/gpuflame-demo ]]; then
    mkdir -p "$lib/gpuflame-demo"
    install -m 755 "$built/gpuflame-demo/"* "$lib/gpuflame-demo/"
fi
fill() { sed -e "s|@VERSION@|$version|g" -e "s|@SERIES@|${version%.*}|g" -e "s|@URL@|$url|g" "$1" > "$2"; chmod 644 "$2"; }
fill "$root/capi/gpuflame.pc.in" "$lib/pkgconfig/gpuflame.pc"
fill "$root/capi/gpuflame-config-version.cmake.in" "$lib/cmake/gpuflame/gpuflame-config-version.cmake"
install -m 644 "$root/capi/gpuflame-config.cmake" "$lib/cmake/gpuflame/"
echo "installed gpuflame $version in $prefix"
