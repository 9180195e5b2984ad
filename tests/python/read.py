"""Reads a recording and a trace as tables: python read.py RECORDING TRACE FOLDED LARGE. Checks that the sums of the
tables equal those of the folded stacks."""

import sys

import gpuflame

recording, trace, folded, large = sys.argv[1:]
run = gpuflame.read(recording)
sums = {}
with open(folded) as file:
    for line in file:
        stack, nanos = line.rstrip("\n").rsplit(" ", 1)
        frames = [frame for frame in stack.split(";") if not frame.startswith("[GPU_")]
        sums[";".join(frames)] = sums.get(";".join(frames), 0) + int(nanos)
stacks = {row["stack"]: row["duration_ns"] for row in run.stacks.to_pylist()}
assert stacks == sums, (stacks, sums)
activities = run.activities
assert set(activities["kind"].to_pylist()) <= {"kernel", "copy", "set", "graph"}
assert sum(activities["duration_ns"].to_pylist()) == sum(sums.values())
launches = run.launches.to_pylist()
assert sum(row["activities"] for row in launches) == activities.num_rows, launches[:2]
assert all(row["launch_duration_ns"] >= 0 and row["call"].startswith("cuda") for row in launches)
picture = run._repr_html_()
assert picture.startswith('<iframe srcdoc="&lt;?xml') and "</iframe>" in picture and "<svg" not in picture, picture[:80]
assert "launches" in run.info()

other = gpuflame.read(trace)
assert [row["name"] for row in other.activities.to_pylist()] == ["softmax"]
assert other.launches.num_rows == 1

# The table has more rows than the command writes in one piece.
big = gpuflame.read(large)
assert big.activities.num_rows > 140000
assert big.launches.num_rows == sum(big.stacks["activities"].to_pylist()) == big.activities.num_rows

for wrong, error in (("/nowhere.gfr", FileNotFoundError), (folded, gpuflame.Error)):
    try:
        gpuflame.read(wrong).activities if wrong != folded else gpuflame.read(__file__).activities
    except error as told:
        assert str(told)
    else:
        raise SystemExit("%s was read" % wrong)
print("%d activities" % activities.num_rows)
