//! GID tables of ports.
#![forbid(unsafe_code)]
