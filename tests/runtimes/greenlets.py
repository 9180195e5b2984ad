"""Launches from many greenlets, which take turns after every launch. Arguments: LIBRARY GREENLETS LAUNCHES"""

import ctypes
import sys

import greenlet

library = ctypes.CDLL(sys.argv[1])
greenlets, launches = int(sys.argv[2]), int(sys.argv[3])
main = greenlet.getcurrent()


def dig(depth, launch):
    if depth:
        # The call goes through C functions, whose frames are on the machine's stack. Python's own frames are not on
        # this stack.
        return next(map(dig, [depth - 1], [launch]))
    library.launch_step(launch)
    # During the switch, other greenlets run on this same stack. The stack's content is restored after the switch back.
    return main.switch()


def work(number):
    for launch in range(launches):
        dig((number + launch) % 20, launch)


waiting = [greenlet.greenlet(work) for _ in range(greenlets)]
for number, one in enumerate(waiting):
    one.switch(number)
while waiting:
    for one in waiting:
        one.switch()
    waiting = [one for one in waiting if not one.dead]
library.wait_for_all()
