"""Predicts the most likely next word in a loop: the GPU computes matrix products, and the host finds the largest number. With
GPUSIM_MATH=1 the products are computed, and the words must be those that the program computes itself with integers."""

import random

import torch
from torch.nn import functional as F

WORDS, WIDTH, SAID = 48, 16, 20


def table(rows, columns, seed):
    numbers = random.Random(seed)
    return [[numbers.randrange(-9, 10) for _ in range(columns)] for _ in range(rows)]


def product(a, b):
    return [[sum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]


def largest(row):
    return max(range(len(row)), key=lambda at: (row[at], -at))


def on_host(embedding, head):
    words = [1]
    while len(words) < SAID:
        words.append(largest(product([embedding[words[-1]]], head)[0]))
    return words


def on_gpu(embedding, head, batched):
    """Predicts words on the GPU. With `batched` there are two products; the second has doubled numbers, so the same maximum."""
    head = torch.tensor([head, head] if batched else head, dtype=torch.float32).cuda()
    words = [1]
    while len(words) < SAID:
        row = torch.tensor([embedding[words[-1]]], dtype=torch.float32)
        if batched:
            both = torch.bmm(torch.stack([row, 2 * row]).cuda(), head).cpu()
            first, second = (largest(one[0].tolist()) for one in both)
            assert first == second, (first, second)
            words.append(second)
        else:
            words.append(largest((row.cuda() @ head).cpu()[0].tolist()))
    return words


embedding, head = table(WORDS, WIDTH, 1), table(WIDTH, WORDS, 2)
print("host", on_host(embedding, head))
print("gpu", on_gpu(embedding, head, batched=False))
print("gpu", on_gpu(embedding, head, batched=True))
transposed = torch.tensor(head, dtype=torch.float32).t().contiguous().cuda().t()
products = (torch.tensor(embedding, dtype=torch.float32).cuda() @ transposed).cpu()
print("all", products.int().tolist() == product(embedding, head))
# A layer with a bias, which is added as part of the product; and products of a matrix and a vector, with the matrix as stored
# and transposed.
bias = table(1, WORDS, 3)[0]
rows = product(embedding, head)
matrix = torch.tensor(head, dtype=torch.float32)
weight, vectors, biases = matrix.t().contiguous().cuda(), torch.tensor(embedding, dtype=torch.float32).cuda(), torch.tensor(bias)
layer = F.linear(vectors, weight, biases.float().cuda()).cpu().int().tolist()
print("layer", layer == [[x + y for x, y in zip(row, bias)] for row in rows])
for matrix in (weight, matrix.cuda().t()):
    print("vector", torch.mv(matrix, vectors[5]).cpu().int().tolist() == rows[5])
