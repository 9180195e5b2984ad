#!/usr/bin/env bash
# Puts what `cargo build --release` has made where C and C++ programs look for it.
#
#     capi/install.sh PREFIX [FOLDER]      FOLDER has the build: target/release
#
# PREFIX gets bin/gpuflame, include/gpuflame.h, lib/libgpuflame.so and libgpuflame-preload.so, and what pkg-config and CMake ask for. It may be moved
# as a whole. DESTDIR is put before PREFIX.
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
    [[ -f $built/$file ]] || { echo "install.sh: there is no $built/$file; build it: cargo build --release" >&2; exit 1; }
done

lib=$prefix/lib
mkdir -p "$prefix/bin" "$prefix/include" "$lib/pkgconfig" "$lib/cmake/gpuflame"
install -m 755 "$built/gpuflame" "$prefix/bin/"
install -m 644 "$root/include/gpuflame.h" "$prefix/include/"
install -m 755 "$built/libgpuflame.so" "$lib/libgpuflame.so.$version"
ln -sf "libgpuflame.so.$version" "$lib/libgpuflame.so.0"
ln -sf libgpuflame.so.0 "$lib/libgpuflame.so"
install -m 755 "$built/libgpuflame-preload.so" "$lib/"
fill() { sed -e "s|@VERSION@|$version|g" -e "s|@SERIES@|${version%.*}|g" -e "s|@URL@|$url|g" "$1" > "$2"; chmod 644 "$2"; }
fill "$root/capi/gpuflame.pc.in" "$lib/pkgconfig/gpuflame.pc"
fill "$root/capi/gpuflame-config-version.cmake.in" "$lib/cmake/gpuflame/gpuflame-config-version.cmake"
install -m 644 "$root/capi/gpuflame-config.cmake" "$lib/cmake/gpuflame/"
echo "gpuflame $version is in $prefix"
