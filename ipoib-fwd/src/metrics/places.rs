//! Places for a bounded number of clients of the exporter. A client that holds connections open
//! keeps no other one out.
//!
//! When all places are taken, the network address with the most connections gives up the oldest of them. One
//! host is one IPv4 address, or one /64 of IPv6.

use std::net::IpAddr;

use tokio::task::AbortHandle;

/// Clients at a time.
pub(super) const MAX_CLIENTS: usize = 64;

/// A client that is served.
#[derive(Debug)]
struct Client {
    host: IpAddr,
    task: AbortHandle,
}

/// The clients that are served, the oldest first.
#[derive(Default, Debug)]
pub(super) struct Places(Vec<Client>);

impl Places {
    /// Gives a place to a client, and takes another one's place if there is none left.
    pub(super) fn take(&mut self, address: IpAddr, task: AbortHandle) {
        self.0.retain(|client| !client.task.is_finished());
        if self.0.len() >= MAX_CLIENTS
            && let Some(victim) = self.victim()
        {
            self.0.remove(victim).task.abort();
        }
        self.0.push(Client { host: host(address), task });
    }

    /// The oldest connection of the host that has the most; of several such hosts the
    /// one with the oldest connection.
    fn victim(&self) -> Option<usize> {
        let of = |host: IpAddr| self.0.iter().filter(|client| client.host == host).count();
        let counts: Vec<usize> = self.0.iter().map(|client| of(client.host)).collect();
        let most = counts.iter().max()?;
        counts.iter().position(|count| count == most)
    }
}

/// What counts as one host.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_with_the_most_connections_gives_up_its_oldest() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut places = Places::default();
        let take = |places: &mut Places, address: &str| {
            let task = runtime.spawn(std::future::pending::<()>());
            places.take(address.parse().unwrap(), task.abort_handle());
            // An aborted task is finished once the runtime has seen it.
            runtime.block_on(tokio::task::yield_now());
            task
        };
        let first = take(&mut places, "10.0.0.1");
        let v6 = take(&mut places, "2001:db8::1");
        let many: Vec<_> =
            (2..MAX_CLIENTS).map(|n| take(&mut places, &format!("2001:db8:1::{n:x}"))).collect();
        assert!(many.iter().chain([&first, &v6]).all(|task| !task.is_finished()));
        for task in &many {
            drop(take(&mut places, "2001:db8:1:0:ffff::1"));
            assert!(task.is_finished());
        }
        let mapped = take(&mut places, "::ffff:10.0.0.1");
        assert!(!first.is_finished() && !v6.is_finished() && !mapped.is_finished());
        assert_eq!(places.0.len(), MAX_CLIENTS);
        assert_eq!(host("::ffff:10.0.0.1".parse().unwrap()), host("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn a_client_that_is_gone_leaves_its_place() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut places = Places::default();
        let kept = runtime.spawn(std::future::pending::<()>());
        places.take("10.0.0.1".parse().unwrap(), kept.abort_handle());
        for _ in 0..4 * MAX_CLIENTS {
            let task = runtime.spawn(async {});
            runtime.block_on(tokio::task::yield_now());
            places.take("10.0.0.1".parse().unwrap(), task.abort_handle());
        }
        runtime.block_on(tokio::task::yield_now());
        assert!(!kept.is_finished());
    }
}
