"""Tied residual codes: retrieval by codes that begin at dense retrieval."""

from callslip.methods.tied_residual.method import Coded, TiedResidual, codebooks, makers
from callslip.methods.tied_residual.settings import TiedResidualSettings

__all__ = ["Coded", "TiedResidual", "TiedResidualSettings", "codebooks", "makers"]
