"""`python -m vstate_cli`."""

from vstate_cli.app import main

main()
