"""Servers that launch 200 kernels, create a file `ready-PID`, and end like well-known servers on SIGTERM or SIGINT.

    served.py early|late|workers|forked|managed [fork|spawn]

With `early` and `late`, the server has signal handlers while it serves, like uvicorn. On a signal, it ends its work,
restores the previous handlers, and sends itself the signal again. With `early` it launches before it sets its handlers,
with `late` after that. With `workers`, the server spawns two workers, and sends them SIGTERM when it gets a signal,
like uvicorn with two workers. With `forked`, the server forks a worker, which sets the default signal actions and then
serves, like gunicorn with a uvicorn worker. With `managed`, a process of `multiprocessing` serves without handlers, and
the main process ends it by SIGTERM."""

import multiprocessing
import os
import pathlib
import signal
import sys
import time

sys.dont_write_bytecode = True
import workers  # noqa: E402

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def launch():
    workers.launch(200)
    pathlib.Path(f"ready-{os.getpid()}").touch()


def serve(launches_first):
    captured = []
    if launches_first:
        launch()
    before = {number: signal.signal(number, lambda number, _: captured.append(number)) for number in SIGNALS}
    if not launches_first:
        launch()
    while not captured:
        time.sleep(0.01)
    for number, handler in before.items():
        signal.signal(number, handler)
    for number in reversed(captured):
        signal.raise_signal(number)


def serve_with_workers():
    asked = []
    for number in SIGNALS:
        signal.signal(number, lambda number, _: asked.append(number))
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=serve, args=(False,)) for _ in range(2)]
    for process in processes:
        process.start()
    while not asked:
        time.sleep(0.01)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


def serve_forked():
    asked = []
    for number in SIGNALS:
        signal.signal(number, lambda number, _: asked.append(number))
    worker = os.fork()
    if worker == 0:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        serve(False)
        os._exit(3)
    while not asked:
        time.sleep(0.01)
    os.kill(worker, signal.SIGTERM)
    os.waitpid(worker, 0)


def wait():
    workers.launch(200)
    while not pathlib.Path("managed").exists():
        time.sleep(0.01)
    pathlib.Path(f"ready-{os.getpid()}").touch()
    time.sleep(120)


def manage(method):
    process = multiprocessing.get_context(method).Process(target=wait)
    process.start()
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    pathlib.Path("managed").touch()
    process.join()


def main(how, method=None):
    try:
        if how in ("early", "late"):
            serve(how == "early")
        elif how == "workers":
            serve_with_workers()
        elif how == "forked":
            serve_forked()
        else:
            manage(method)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
