//! The gateway: workers between an Ethernet port and an IPoIB link, and their control lcore.

mod worker;

pub use worker::{Cause, GatewayCommand, GatewayNote, GatewayWorker, Side};
