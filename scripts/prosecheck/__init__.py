"""The prose checker behind `scripts/prose`: rules, parsers and budget."""
