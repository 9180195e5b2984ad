# Builds the programs and the probe
# LIMIT 130
#
# If the step cannot build a program, it uses the program that prebuild.sh built, if this was copied to the machine.
# Otherwise the step writes the reason into bin/NAME.why, and the steps that need the program report the reason.

mkdir -p "$bin"
rm -f "$bin/done"
# shellcheck source=/dev/null
. "$KIT_HERE/compile.sh"

if [ "$KIT_SIMULATED" = 1 ]; then
    (cd "$KIT_ROOT" && tests/gpusim/run --stage "$KIT_OUT/sim") >/dev/null || exit 1
fi

# either NAME COMMAND..: builds bin/NAME with the command. If this fails, uses the program that prebuild.sh built.
either() {
    local name=$1
    shift
    if "$@" "$bin/$name" >"$bin/$name.log" 2>&1; then
        rm -f "$bin/$name.why"
        fact "built" "$name"
        return
    fi
    rm -f "$bin/$name"
    reason "$bin/$name.log" >"$bin/$name.why"
    if [ "$KIT_SIMULATED" = 0 ] && [ -n "$KIT_PREBUILT" ] && cp "$KIT_PREBUILT/$name" "$bin/$name" 2>/dev/null; then
        fact "built elsewhere" "$name, since here: $(cat "$bin/$name.why")"
    else
        missing "$name: $(cat "$bin/$name.why")"
    fi
}

simulated() { # SOURCE OUT
    gcc -x c -std=gnu11 -g -O2 -Wall -Wextra -Werror -I "$KIT_ROOT/tests/gpusim/include" "$1" -x none -L "$KIT_OUT/sim" -lcudart \
        -lpthread -lm -o "$2"
}

either probe.so probe &
either driver driver &
wait
while read -r name linked source; do
    if [ "$KIT_SIMULATED" = 0 ]; then
        either "$name" cuda_here "$linked" "$source" &
    elif [ "$linked" = shared ]; then
        [ -f "${source%.cu}.c" ] && source=${source%.cu}.c # examples that are in C
        either "$name" simulated "$source" &
    fi
    # Run at most one compiler per processor at the same time.
    [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n
done < <(cuda_programs)
wait
touch "$bin/done"
[ -f "$bin/probe.so" ]
