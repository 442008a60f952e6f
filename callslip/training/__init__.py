"""Training: the loop, checkpoints, shared losses, batches and negatives."""
