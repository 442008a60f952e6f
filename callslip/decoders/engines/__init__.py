"""Engines, which run a decoder's weights in search, with torch or ONNX Runtime."""
