//! `ibfab`: the software InfiniBand fabric.
#![forbid(unsafe_code)]

fn main() {}
