"""Changes programs and libraries that were linked with this machine's glibc so that they use the functions of an older
glibc.

    older-glibc.py FOLDER FILE...

Copies each file into FOLDER. If the file needs functions with versions from glibc 2.18 or later, the copy needs them in
any version, and the loader takes the function with that name. Functions that the older glibc does not have at all must
be in another library.
"""

import pathlib
import struct
import sys

OLDEST = b"GLIBC_2.2.5"
ANY = 1


def hashed(name):
    """Returns the hash of a symbol version, which the loader compares before it compares names."""
    h = 0
    for byte in name:
        h = (h << 4) + byte
        high = h & 0xF0000000
        h = (h ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return h


def sections(data):
    """Returns offset, size and link of each section, keyed by the section's type."""
    at, each, count = struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A)
    for n in range(count):
        _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", data, at + n * each)
        yield kind, offset, size, link


def is_new(name):
    numbers = name.removeprefix(b"GLIBC_").split(b".")
    return name.startswith(b"GLIBC_2.") and int(numbers[1]) > 17


def older(data):
    DYNSYM, VERNEED, VERSYM = 11, 0x6FFFFFFE, 0x6FFFFFFF
    data, all_sections = bytearray(data), list(sections(data))
    found = {kind: (offset, size, link) for kind, offset, size, link in all_sections}
    if VERNEED not in found:
        return data
    need, _, strings = found[VERNEED]
    names = all_sections[strings][1]
    text = lambda at: bytes(data[names + at : data.index(0, names + at)])
    oldest = data.find(OLDEST + b"\0", names) - names
    assert 0 <= oldest < all_sections[strings][2], "it needs nothing of the oldest version, which no program does"
    new = set()
    while True:
        _, count, _, first, following = struct.unpack_from("<HHIII", data, need)
        at = need + first
        for _ in range(count):
            _, _, number, name, step = struct.unpack_from("<IHHII", data, at)
            if is_new(text(name)):
                new.add(number)
                struct.pack_into("<I", data, at, hashed(OLDEST))
                struct.pack_into("<I", data, at + 8, oldest)
            at += step
        if not following:
            break
        need += following
    offset, size, _ = found[VERSYM]
    for at in range(offset, offset + size, 2):
        if struct.unpack_from("<H", data, at)[0] & 0x7FFF in new:
            struct.pack_into("<H", data, at, ANY)
    return data


folder = pathlib.Path(sys.argv[1])
for file in map(pathlib.Path, sys.argv[2:]):
    copy = folder / file.name
    copy.write_bytes(older(file.read_bytes()))
    copy.chmod(0o755)
