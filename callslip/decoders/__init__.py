"""Decoders: the models that write codes, ours and T5, and the engines that run them."""
