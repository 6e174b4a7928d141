"""The commands, one module for each; `vstate_cli.app` lists them."""
