"""Training: the one loop, the losses that two papers share, batches and negatives."""
