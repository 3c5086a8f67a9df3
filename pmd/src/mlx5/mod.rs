//! The mlx5 data path: work queues, completion queues and doorbells as a ConnectX reads and writes them.
