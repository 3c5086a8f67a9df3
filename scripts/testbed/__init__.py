"""Building blocks of the demo, the end-to-end tests, the soak tests and the gateway benchmarks: hosts in
network namespaces, programs in the background, traffic and raw packets.
"""
