"""The test command: steps of `scripts/test`, the inner loop `--quick`, and the parts of `--full`."""
