"""`python -m callslip`: the command line."""

from callslip.cli import main

main()
