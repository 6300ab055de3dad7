"""The model in a process of ours: transformers on the CPU or one GPU, batched, killable."""
