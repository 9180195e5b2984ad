"""Runs two models of Hugging Face's Transformers with few layers and random weights, a GPT-2 and a Llama. The models
predict, and decode with a cache, with their own attention (`eager`) and with PyTorch's (`sdpa`). `generate` is not
used, because computed values decide when it ends, and the simulated GPU computes none."""

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from model import steps  # also keeps attention off cuDNN

WORDS = 512


def models(attention):
    small = {"vocab_size": WORDS, "attn_implementation": attention, "bos_token_id": 0, "eos_token_id": None}
    yield GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=2, n_head=4, n_positions=128, **small))
    llama = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    yield LlamaForCausalLM(LlamaConfig(**llama, num_key_value_heads=2, max_position_embeddings=128, **small))


@torch.inference_mode()
def main():
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    tokens = torch.zeros(2, 16, dtype=torch.long, device="cuda")
    for attention in ("eager", "sdpa"):
        for model in models(attention):
            model = model.cuda().eval()
            for _ in range(steps(2)):
                logits = model(tokens).logits
            out = model(tokens, use_cache=True)
            for _ in range(steps(2)):
                token = out.logits[:, -1:].argmax(-1)
                out = model(token, past_key_values=out.past_key_values, use_cache=True)
            print(attention, type(model).__name__, logits.shape, out.logits.shape)
    torch.cuda.synchronize()


main()
