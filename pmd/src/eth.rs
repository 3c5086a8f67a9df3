//! Ethernet ports.
