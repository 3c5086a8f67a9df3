//! A limited number of client slots of the exporter, and their fair assignment. A client that holds
//! connections open cannot keep others out.
//!
//! If all slots are in use, a new client takes the slot of another one:
//!
//! * of a client that has not sent its request;
//! * if there is none, of a client whose answer is being sent.
//!
//! Among several, it is the oldest client of the host with the most connections. A client that waits for the
//! gateway keeps its slot: if all clients wait, the new client is refused.
//!
//! A host has at most three quarters of the slots. A new client of a host with that number takes a slot from
//! the same host, or is refused if all of them wait. One host can therefore not take all slots.
//!
//! A host is one IPv4 address or one IPv6 /64. All loopback addresses are one host.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::task::AbortHandle;

/// Maximum number of clients.
pub(super) const MAX_CLIENTS: usize = 64;
/// Maximum number of clients of one host.
const MAX_OF_HOST: usize = MAX_CLIENTS / 4 * 3;

/// Progress of a client's request: 0 until its head is complete. It is shared by the task that serves the
/// client and by [`Places`].
#[derive(Clone, Default, Debug)]
pub(super) struct Progress(Arc<AtomicU8>);

impl Progress {
    /// The answer is being sent.
    const ANSWERED: u8 = 1;
    /// The client waits for the gateway's answer.
    const WAITS: u8 = 2;

    /// Sets that the request is complete and the client waits for its answer.
    pub(super) fn waits(&self) {
        self.0.store(Self::WAITS, Ordering::Relaxed);
    }

    /// Sets that the answer is being sent.
    pub(super) fn answered(&self) {
        self.0.store(Self::ANSWERED, Ordering::Relaxed);
    }

    fn stage(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A client that is being served.
#[derive(Debug)]
struct Client {
    host: IpAddr,
    progress: Progress,
    task: AbortHandle,
}

/// The clients that are being served, oldest first.
#[derive(Default, Debug)]
pub(super) struct Places(Vec<Client>);

impl Places {
    /// Gives a slot to a client, taking that of another if none is free. Aborts the client's task if no slot
    /// can be taken.
    pub(super) fn take(&mut self, address: IpAddr, progress: Progress, task: AbortHandle) {
        self.0.retain(|client| !client.task.is_finished());
        let host = host(address);
        let is_host_full = self.of(host) >= MAX_OF_HOST;
        if is_host_full || self.0.len() >= MAX_CLIENTS {
            let Some(victim) = self.victim(is_host_full.then_some(host)) else {
                task.abort();
                return;
            };
            self.0.remove(victim).task.abort();
        }
        self.0.push(Client { host, progress, task });
    }

    /// Number of connections of a host.
    fn of(&self, host: IpAddr) -> usize {
        self.0.iter().filter(|client| client.host == host).count()
    }

    /// The client that loses its slot, among all clients or those of one host.
    fn victim(&self, only: Option<IpAddr>) -> Option<usize> {
        let candidates = self.0.iter().enumerate().filter(|(_, client)| {
            client.progress.stage() != Progress::WAITS && only.is_none_or(|host| client.host == host)
        });
        // The oldest one comes first among equals.
        candidates
            .min_by_key(|(_, client)| {
                (client.progress.stage(), MAX_CLIENTS.saturating_sub(self.of(client.host)))
            })
            .map(|(at, _)| at)
    }
}

/// The host of an address.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Runtime;
    use tokio::task::JoinHandle;

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    /// A client that never finishes, and its progress.
    fn take(runtime: &Runtime, places: &mut Places, address: &str) -> (JoinHandle<()>, Progress) {
        let (task, progress) = (runtime.spawn(std::future::pending::<()>()), Progress::default());
        places.take(address.parse().unwrap(), progress.clone(), task.abort_handle());
        // An aborted task is finished only after the runtime has polled it.
        runtime.block_on(tokio::task::yield_now());
        (task, progress)
    }

    fn is_served((task, _): &(JoinHandle<()>, Progress)) -> bool {
        !task.is_finished()
    }

    #[test]
    fn the_host_with_the_most_connections_loses_its_oldest() {
        let (runtime, mut places) = (runtime(), Places::default());
        let mut take = |address: &str| take(&runtime, &mut places, address);
        let others: Vec<_> = (0..MAX_CLIENTS - MAX_OF_HOST)
            .map(|n| take(["10.0.0.1", "2001:db8::1", "10.0.0.2"][n % 3]))
            .collect();
        let many: Vec<_> = (0..MAX_OF_HOST).map(|n| take(&format!("2001:db8:1::{n:x}"))).collect();
        assert!(many.iter().chain(&others).all(is_served));
        for client in &many {
            drop(take("2001:db8:1:0:ffff::1"));
            assert!(!is_served(client));
        }
        let mapped = take("::ffff:10.0.0.1");
        assert!(others.iter().all(is_served) && is_served(&mapped));
        assert_eq!(places.0.len(), MAX_CLIENTS);
        assert_eq!(host("::ffff:10.0.0.1".parse().unwrap()), host("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn all_loopback_addresses_are_one_host() {
        let (runtime, mut places) = (runtime(), Places::default());
        let mut take = |address: &str| take(&runtime, &mut places, address);
        let remote = [take("10.0.0.1"), take("10.0.0.1")];
        let first = take("127.0.0.1");
        let local: Vec<_> = (0..2 * MAX_CLIENTS).map(|n| take(&format!("127.0.{n}.7"))).collect();
        assert!(remote.iter().all(is_served), "each address of 127.0.0.0/8 was a separate host");
        assert!(!is_served(&first));
        assert_eq!(local.iter().filter(|client| is_served(client)).count(), MAX_OF_HOST);
        for local in ["::1", "::ffff:127.3.4.5"] {
            assert_eq!(host(local.parse().unwrap()), host("127.0.0.1".parse().unwrap()), "{local}");
        }
    }

    #[test]
    fn a_client_that_waits_for_the_gateway_keeps_its_slot() {
        let (runtime, mut places) = (runtime(), Places::default());
        let mut take = |address: &str| take(&runtime, &mut places, address);
        let scrape = take("127.0.0.1");
        scrape.1.waits();
        let answered = take("127.0.0.1");
        answered.1.answered();
        let held: Vec<_> = (0..MAX_OF_HOST - 2).map(|_| take("127.0.0.2")).collect();
        for client in &held {
            let newcomer = take("127.0.0.3");
            newcomer.1.waits();
            assert!(!is_served(client) && is_served(&newcomer), "one without a request makes room");
        }
        assert!(is_served(&answered));
        let last = take("127.0.0.3");
        assert!(is_served(&last) && !is_served(&answered), "then one whose answer is being sent");
        last.1.waits();
        let refused = take("127.0.0.3");
        assert!(!is_served(&refused) && is_served(&scrape) && is_served(&last));
        // Clients of other hosts get the slots that no single host can have.
        let other = take("10.0.0.1");
        other.1.waits();
        assert!(is_served(&other));
        for n in 1..MAX_CLIENTS - MAX_OF_HOST {
            take(&format!("10.0.1.{n}")).1.waits();
        }
        assert!(!is_served(&take("10.0.0.2")), "all clients wait");
        assert!([&scrape, &last, &other].into_iter().all(is_served));
    }

    #[test]
    fn a_client_that_disconnects_frees_its_slot() {
        let (runtime, mut places) = (runtime(), Places::default());
        let kept = take(&runtime, &mut places, "10.0.0.1");
        for _ in 0..4 * MAX_CLIENTS {
            let task = runtime.spawn(async {});
            runtime.block_on(tokio::task::yield_now());
            places.take("10.0.0.1".parse().unwrap(), Progress::default(), task.abort_handle());
        }
        runtime.block_on(tokio::task::yield_now());
        assert!(is_served(&kept));
    }
}
