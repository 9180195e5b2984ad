"""Runs JAX with a fixed seed and without autotuning, so every run has the same kernels. Exit code 75: no JAX or no
GPU."""

import os
import sys

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
    import jax.numpy as jnp

    gpu = [device for device in jax.devices() if device.platform == "gpu"]
except (ImportError, RuntimeError) as error:
    print(error, file=sys.stderr)
    sys.exit(75)
if not gpu:
    print("JAX sees no GPU", file=sys.stderr)
    sys.exit(75)


@jax.jit
def step(x, w):
    return jnp.tanh(x @ w) + jnp.sin(x).sum(axis=1, keepdims=True)


x = jax.random.normal(jax.random.PRNGKey(1), (512, 512))
w = jax.random.normal(jax.random.PRNGKey(2), (512, 512))
for _ in range(50):
    x = step(x, w)
x.block_until_ready()
