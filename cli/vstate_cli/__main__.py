"""`python -m vstate_cli`."""

from vstate_cli.start import main

main()
