"""Servers that launch 200 kernels, create a file `ready-PID`, and end like well-known servers on SIGTERM or SIGINT.

    served.py early|late                   uvicorn: its handlers are there while it serves; it ends its work, restores those before
                                           them, and sends itself the signal again. It launches before that, or after
    served.py workers                      uvicorn with two workers, which it spawns, and sends SIGTERM when it gets a signal
    served.py forked                       gunicorn with a worker of uvicorn's: the worker is forked, sets the defaults, and serves
    served.py managed fork|spawn           a process of `multiprocessing` serves, without handlers; main has SIGTERM end it"""

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
