"""Runs a decode loop with a cache of keys and values: eager, and captured into a CUDA graph for each batch size."""

import torch

from model import Gpt, caches, steps


class Decoder:
    def __init__(self, model, batch):
        self.model = model
        self.tokens = torch.zeros(batch, 1, dtype=torch.long, device="cuda")
        self.caches = caches(model, batch)
        self.graph = None

    def forward_once(self):
        logits = self.model(self.tokens, self.caches)
        self.tokens.copy_(logits[:, -1:].argmax(-1))
        for cache in self.caches:
            cache.place.add_(1)

    def capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.forward_once()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.forward_once()

    def decode(self, count):
        for _ in range(count):
            if self.graph is None:
                self.forward_once()
            else:
                self.graph.replay()
        return self.tokens.cpu()


@torch.inference_mode()
def main():
    torch.manual_seed(1)
    model = Gpt().cuda().eval()
    eager = Decoder(model, 2)
    print("eager", eager.decode(steps(8)).shape)
    decoders = {batch: Decoder(model, batch) for batch in (1, 2, 4)}
    for decoder in decoders.values():
        decoder.capture()
    for batch, decoder in decoders.items():
        print("captured", batch, decoder.decode(steps(8)).shape)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
