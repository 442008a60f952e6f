"""Callslip where people already work: MTEB, PyTerrier, LangChain, MCP, transformers' `generate`, the Hugging Face hub.

Each module imports its library, so each needs its extra: `pip install 'callslip[mteb]'`, `[pyterrier]`, `[langchain]`,
`[mcp]`. `generation` and `hub` need nothing more.
"""
