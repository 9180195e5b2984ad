"""Loads batches with workers that are forked while CUDA is already in use, and with a worker that is spawned."""

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, place):
        return torch.full((32,), float(place))


def read(model, workers, way):
    loader = DataLoader(Rows(), batch_size=8, num_workers=workers, multiprocessing_context=way, pin_memory=True)
    total = 0
    for batch in loader:
        model(batch.cuda(non_blocking=True))
        total += batch.sum().item()
    print(way, total)


if __name__ == "__main__":
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)).cuda()
    for _ in range(3):
        read(model, 2, "fork")
    read(model, 1, "spawn")
    torch.cuda.synchronize()
