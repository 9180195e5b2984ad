"""Makes launches that the driver refuses (GPUSIM_FAULTS=launch_fail:every=N). Each of them raises an exception in Python,
wherever in PyTorch the launch is made, even on a thread of autograd. Later launches work."""

import torch
from torch.nn import functional as F

from model import Gpt, settle, steps


def attempt(what, work):
    try:
        work()
        print(what, "went well")
    except RuntimeError as error:
        print(what, str(error).splitlines()[0])


def main():
    torch.manual_seed(1)
    model = Gpt(layers=1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.zeros(2, 16, dtype=torch.long, device="cuda")

    def forward():
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    def step():
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    for _ in range(steps(30)):
        attempt("forward", forward)
        attempt("step", step)
        attempt("product", lambda: torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda"))
    settle()


main()
