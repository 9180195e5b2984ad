"""`python -m gpuflame` runs the `gpuflame` command. `python -m gpuflame run script.py` records the script with this Python."""

import os
import sys

from ._library import Error, place_of


# The options of `run` that take a value.
WITH_VALUE = ("-o", "--output", "-f", "--formats", "--format", "--window", "--cpu-samples", "--config", "--library", "--color")


def arguments(given, executable):
    """Returns the arguments for the command. If a Python script is to be recorded, this Python is
    inserted before the script."""
    if given[:1] not in (["run"], ["record"]):
        return given
    at = 1
    while at < len(given) and given[at].startswith("-") and given[at] != "--":
        at += 2 if given[at] in WITH_VALUE else 1
    first = at + (given[at:at + 1] == ["--"])
    if given[first:first + 1] and given[first].endswith((".py", ".pyc")):
        return given[:at] + ["--", executable] + given[first:]
    return given


def main():
    try:
        command = place_of("gpuflame")
    except Error as error:
        sys.exit("gpuflame: %s" % error)
    os.execv(command, ["gpuflame"] + arguments(sys.argv[1:], sys.executable))


if __name__ == "__main__":
    main()
