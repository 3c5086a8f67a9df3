//! The runtime of the data plane: lcores, worker loop, publication of tables, rings, counters, control socket.
#![forbid(unsafe_code)]

pub mod capture;
