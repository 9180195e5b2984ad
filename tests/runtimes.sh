#!/usr/bin/env bash
# Installs what a test program of another runtime needs, once, into FOLDER or the system, and prints the program that
# runs or builds it.
#
#   tests/runtimes.sh greenlet|numba|pypy|boost|go|java FOLDER   exits with 75, and a sentence, if it cannot be had
#   PYTHON=PROGRAM tests/runtimes.sh greenlet FOLDER             for this Python
set -euo pipefail
what=${1:?"usage: tests/runtimes.sh greenlet|numba|pypy|boost|go|java FOLDER"}
folder=${2:?"usage: tests/runtimes.sh greenlet|numba|pypy|boost|go|java FOLDER"}

# From Debian, unless it is there: PACKAGE. One at a time: tests that run side by side come here together, and
# apt-get does not wait for another one's lists.
install() {
    exec 9<"$0"
    flock 9
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || {
        echo "$1 is not installed, and only root can install it, with Debian's apt-get" >&2
        exit 75
    }
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$1"; } >/dev/null || {
        echo "$1 cannot be had from Debian" >&2
        exit 75
    }
}

case $what in
greenlet)
    version=3.5.6
    # For another Python than the one that is called so.
    python=${PYTHON:-python3}
    venv=$folder/greenlet-$version-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [[ ! -e $venv/done ]]; then
        rm -rf "$venv"
        "$python" -m venv "$venv" >&2
        "$venv/bin/pip" install -q --disable-pip-version-check --only-binary=:all: --no-deps "greenlet==$version" >&2 || {
            echo "greenlet $version cannot be had from PyPI" >&2
            exit 75
        }
        touch "$venv/done"
    fi
    echo "$venv/bin/python"
    ;;
numba)
    version=0.68.1
    venv=$folder/numba-$version
    if [[ ! -e $venv/done ]]; then
        rm -rf "$venv"
        python3 -m venv "$venv" >&2
        "$venv/bin/pip" install -q --disable-pip-version-check --only-binary=:all: "numba==$version" >&2 || {
            echo "numba $version cannot be had from PyPI, 80 MB" >&2
            exit 75
        }
        touch "$venv/done"
    fi
    echo "$venv/bin/python"
    ;;
pypy)
    command -v pypy3 >/dev/null || install pypy3
    command -v pypy3
    ;;
boost)
    [[ -e /usr/include/boost/context/fiber.hpp ]] || install libboost-context-dev
    echo g++
    ;;
go)
    command -v go >/dev/null || install golang-go
    command -v go
    ;;
java)
    command -v javac >/dev/null || install default-jdk-headless
    command -v javac
    ;;
esac
