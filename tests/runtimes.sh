#!/usr/bin/env bash
# Installs the packages that a test program of another language runtime needs into FOLDER or the system, if they are not
# installed yet. Prints the program that runs or builds the test program.
#
#   tests/runtimes.sh greenlet|numba|pypy|boost|go|java FOLDER   prints why and exits with 75 if it cannot be installed
#   PYTHON=PROGRAM tests/runtimes.sh greenlet FOLDER             for this Python
set -euo pipefail
what=${1:?"usage: tests/runtimes.sh greenlet|numba|pypy|boost|go|java FOLDER"}
folder=${2:?"usage: tests/runtimes.sh greenlet|numba|pypy|boost|go|java FOLDER"}

# Installs PACKAGE from Debian, unless it is already installed. Only one test installs packages at a time, because
# apt-get does not wait for another apt-get that updates its lists.
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

# Installs a package from PyPI into a separate environment of this Python: PYTHON PACKAGE VERSION [OPTION OF PIP].
# Prints the environment's Python. Only one test installs packages at a time.
environment() {
    local venv=$folder/$2-$3-$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    mkdir -p "$venv"
    exec 9<"$venv"
    flock 9
    if [[ ! -e $venv/done ]]; then
        "$1" -m venv --clear "$venv" >&2
        "$venv/bin/pip" install -q --disable-pip-version-check --only-binary=:all: "${@:4}" "$2==$3" >&2 || {
            echo "$2 $3 cannot be had from PyPI" >&2
            exit 75
        }
        touch "$venv/done"
    fi
    echo "$venv/bin/python"
}

case $what in
greenlet) environment "${PYTHON:-python3}" greenlet 3.5.6 --no-deps ;;
# The download of Numba is 80 MB.
numba) environment python3 numba 0.68.1 ;;
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
