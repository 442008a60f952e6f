"""Engines: how a decoder's weights are run while searching, in torch or in ONNX Runtime."""
