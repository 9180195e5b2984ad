"""Launches from many greenlets, which take turns in the middle of Python functions. Like frames.py, the program prints
Python's own view of the stack at each launch. The stack of a greenlet begins at the greenlet's own function.

    greenlet_frames.py GREENLETS ROUNDS
"""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../programs"))
import frames  # noqa: E402
import greenlet  # noqa: E402

count, rounds = int(sys.argv[1]), int(sys.argv[2])
main = greenlet.getcurrent()


def dig(depth):
    if depth:
        # The call goes through C functions and through Python functions.
        return next(map(dig, [depth - 1])) if depth % 2 else dig(depth - 1)
    frames.launch()
    # During the switch, other greenlets run on this same stack. The stack's content is restored after the switch back.
    main.switch()
    frames.launch()


def give(depth):
    dig(depth)
    yield
    main.switch()
    frames.launch()


def work(number):
    for one in range(rounds):
        dig((number + one) % 9)
        list(give(one % 3))


def nested(number):
    # Runs another greenlet inside this greenlet.
    inner = greenlet.greenlet(work)
    inner.switch(number)
    while not inner.dead:
        frames.launch()
        inner.switch()


frames.prepare()
waiting = [greenlet.greenlet(nested if number % 5 == 4 else work) for number in range(count)]
for number, one in enumerate(waiting):
    one.switch(number)
while waiting:
    frames.plain()
    for one in waiting:
        one.switch()
    waiting = [one for one in waiting if not one.dead]
frames.finish()
