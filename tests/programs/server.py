"""A server that forks its workers before it initialises CUDA, as gunicorn does with --preload.

    server.py WORKERS LAUNCHES

Each worker launches, creates a file `launched-PID`, and serves until SIGTERM. A worker handles SIGTERM itself, and then
exits normally. On SIGHUP, the server starts new workers and sends SIGTERM to the old workers. On SIGTERM, it sends
SIGTERM to all workers and ends. If a file `hangs-PID` exists, the server treats this worker as timed out, and kills and
replaces it."""

import os
import pathlib
import signal
import sys
import time

sys.dont_write_bytecode = True
import workers  # noqa: E402

count, launches = int(sys.argv[1]), int(sys.argv[2])
asked = []
alive = []


def work():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    workers.launch(launches)
    pathlib.Path(f"launched-{os.getpid()}").touch()
    while True:
        time.sleep(0.01)


def begin():
    for _ in range(count - len(alive)):
        worker = os.fork()
        if worker == 0:
            work()
        alive.append(worker)


def end(workers):
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
    for worker in workers:
        _, status = os.waitpid(worker, 0)
        assert status == 0, status


for number in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, lambda number, _: asked.append(number))
while signal.SIGTERM not in asked:
    begin()
    for worker in list(alive):
        if pathlib.Path(f"hangs-{worker}").exists():
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            alive.remove(worker)
    if signal.SIGHUP in asked:
        asked.remove(signal.SIGHUP)
        old = alive[:]
        alive.clear()
        begin()
        end(old)
    time.sleep(0.01)
end(alive)
