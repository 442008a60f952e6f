"""How near vectors that an index holds in half precision are to the encoder's."""

from __future__ import annotations

HALF = {"rtol": 2**-11, "atol": 1e-6}
"""Options of `assert_allclose`: half precision rounds to eleven bits."""
