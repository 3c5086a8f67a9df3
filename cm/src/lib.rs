//! Communication management and subnet administration without I/O: a MAD agent with retransmission, an SA client,
//! and the CM's connection state machine.
#![forbid(unsafe_code)]
