//! Queue pairs of the software device, by the driver: created, moved to RTS, and destroyed.

use std::time::Instant;

use crate::pair::{Depths, end, pair, start_eal, text};
use pmd::mem::{Pool, PoolConfig};

/// Queue pairs per second.
pub(super) fn run(seconds: f64) -> Result<f64, String> {
    let _eal = start_eal()?;
    let config = PoolConfig { count: 4096, data_room: 2048, cache: 64, socket: -1 };
    let pool = Pool::create("control", &config).map_err(text)?;
    let depths = Depths { send: 64, receive: [64, 64], largest: 2000 };
    let (mut one, other) = pair(&[], &pool, depths)?;
    let mut made = 0_u64;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        for _ in 0..16 {
            one.connect_another(&other)?;
        }
        made += 16;
    }
    let rate = made as f64 / start.elapsed().as_secs_f64();
    end(one)?;
    end(other)?;
    Ok(rate)
}
