//! The mlx5 data path: work queues, completion queues and doorbells as a ConnectX reads and writes them.
//!
//! * [`layout`] – the formats in memory, and nothing else; the software device shares this module only.
//! * [`rings`] – where a queue lies in memory and how large it is: the library's part of the work.

pub mod layout;
pub mod rings;
