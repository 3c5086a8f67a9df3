"""What demo, end-to-end checks, benchmarks and long runs play on: hosts in network namespaces, the fabric and the gateway between them."""
