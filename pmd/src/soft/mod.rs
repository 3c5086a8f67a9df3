//! The software ConnectX: a device model behind mlx5 rings, and the links that join its ports.

pub mod link;
