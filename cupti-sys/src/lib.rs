//! Raw bindings to NVIDIA CUPTI, loaded at run time.
