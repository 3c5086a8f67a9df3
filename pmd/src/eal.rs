//! The safe face of DPDK's environment abstraction layer.
