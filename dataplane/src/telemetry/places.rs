//! Client slots. If all are in use, the client that has been idle longest is closed. One additional slot is
//! reserved for root.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Maximum number of clients.
pub const MAX_CLIENTS: usize = 16;
/// Maximum number of clients that wait for a slot.
const MAX_WAITING: usize = 16;

/// A client that waits for its peer's next request.
#[derive(Debug)]
struct Idle {
    client: u64,
    /// True for the slot reserved for root.
    is_kept: bool,
    /// Ends the client's task.
    close: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Clients {
    next: u64,
    waiting: usize,
    /// Number of waiting clients that belong to root.
    waiting_roots: usize,
    /// Idle clients, longest first.
    idle: Vec<Idle>,
}

impl Clients {
    /// Closes the client that has been idle longest among those whose slot a waiting client can use.
    fn make_room(&mut self) {
        let is_for_root = self.waiting_roots > 0;
        if self.waiting > 0
            && let Some(oldest) = self.idle.iter().position(|idle| is_for_root || !idle.is_kept)
        {
            self.idle.remove(oldest).close.notify_one();
        }
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    for_root: Arc<Semaphore>,
    clients: Mutex<Clients>,
}

/// A client's slot, freed on drop.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    client: u64,
    is_kept: bool,
    close: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(MAX_CLIENTS)),
            for_root: Arc::new(Semaphore::new(1)),
            clients: Mutex::default(),
        })
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a slot for a client. It may wait until another client's request has been answered. Returns
    /// `None` if too many clients are waiting.
    pub(super) async fn take(self: &Arc<Self>, is_root: bool) -> Option<Place> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(self.place(permit, false));
        }
        if is_root && let Ok(permit) = Arc::clone(&self.for_root).try_acquire_owned() {
            return Some(self.place(permit, true));
        }
        {
            let mut clients = self.clients();
            if clients.waiting >= MAX_WAITING && !is_root {
                return None;
            }
            clients.waiting += 1;
            clients.waiting_roots += usize::from(is_root);
            clients.make_room();
        }
        let free = Arc::clone(&self.free).acquire_owned();
        let (permit, is_kept) = if is_root {
            tokio::select! {
                biased;
                permit = Arc::clone(&self.for_root).acquire_owned() => (permit, true),
                permit = free => (permit, false),
            }
        } else {
            (free.await, false)
        };
        {
            let mut clients = self.clients();
            clients.waiting -= 1;
            clients.waiting_roots -= usize::from(is_root);
        }
        Some(self.place(permit.ok()?, is_kept))
    }

    fn place(self: &Arc<Self>, permit: OwnedSemaphorePermit, is_kept: bool) -> Place {
        let mut clients = self.clients();
        clients.next += 1;
        let (client, close) = (clients.next, Arc::new(Notify::new()));
        drop(clients);
        Place { places: Arc::clone(self), client, is_kept, close, _permit: permit }
    }
}

impl Place {
    /// True for the slot reserved for root.
    pub(super) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Marks the client as idle. Its slot may then be given to another client, which [`Place::wanted`]
    /// reports.
    pub(super) fn idle(&self) {
        let mut clients = self.places.clients();
        clients.idle.push(Idle {
            client: self.client,
            is_kept: self.is_kept,
            close: Arc::clone(&self.close),
        });
        clients.make_room();
    }

    /// Marks the client as busy until its request is answered. If it was about to be closed, another one is
    /// closed instead.
    pub(super) fn busy(&self) {
        let mut clients = self.places.clients();
        if !self.leave(&mut clients) && pin!(self.close.notified()).enable() {
            clients.make_room();
        }
    }

    /// Removes the client from the idle list. Returns false if it was not in it.
    fn leave(&self, clients: &mut Clients) -> bool {
        let before = clients.idle.len();
        clients.idle.retain(|idle| idle.client != self.client);
        clients.idle.len() < before
    }

    /// Waits until the slot is needed for another client.
    pub(super) async fn wanted(&self) {
        self.close.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave(&mut self.places.clients());
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    fn run(body: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(body);
    }

    /// Takes all general slots, each idle.
    async fn fill(places: &Arc<Places>) -> Vec<Place> {
        let mut all = Vec::new();
        for _ in 0..MAX_CLIENTS {
            let place = places.take(false).await.unwrap();
            place.idle();
            all.push(place);
        }
        all
    }

    /// Starts a client that waits, and returns when it does.
    async fn wait(places: &Arc<Places>, is_root: bool) -> tokio::task::JoinHandle<Option<Place>> {
        let before = places.clients().waiting;
        let clone = Arc::clone(places);
        let client = tokio::spawn(async move { clone.take(is_root).await });
        while places.clients().waiting == before {
            assert!(!client.is_finished(), "it got a slot");
            tokio::task::yield_now().await;
        }
        client
    }

    /// True if the client was requested to close.
    fn is_wanted(place: &Place) -> bool {
        pin!(place.close.notified()).enable()
    }

    #[test]
    fn root_takes_the_kept_place_and_closes_nobody() {
        run(async {
            let places = Places::new();
            let all = fill(&places).await;
            let root = places.take(true).await.unwrap();
            assert!(root.is_kept() && !all.iter().any(|place| place.is_kept() || is_wanted(place)));
        });
    }

    #[test]
    fn a_client_that_is_not_roots_leaves_the_kept_place_alone() {
        run(async {
            let places = Places::new();
            let mut all = fill(&places).await;
            let root = places.take(true).await.unwrap();
            root.idle();
            // The others have been idle for less time than root's.
            for place in &all {
                place.busy();
                place.idle();
            }
            let waiter = wait(&places, false).await;
            assert!(is_wanted(&all[0]) && !is_wanted(&root));
            drop(all.remove(0));
            let newest = waiter.await.unwrap().unwrap();
            assert!(!newest.is_kept());
            // Only root's client is idle, and it stays.
            all.iter().for_each(Place::busy);
            let other = wait(&places, false).await;
            root.busy();
            root.idle();
            assert!(!is_wanted(&root));
            // Another client of root can have the slot.
            let second = wait(&places, true).await;
            assert!(is_wanted(&root));
            drop(root);
            assert!(second.await.unwrap().unwrap().is_kept());
            drop(newest);
            assert!(other.await.unwrap().is_some());
        });
    }

    #[test]
    fn if_the_client_to_close_sends_a_request_another_one_is_closed() {
        run(async {
            let places = Places::new();
            let mut all = fill(&places).await;
            let waiter = wait(&places, false).await;
            // The request came first.
            all[0].busy();
            assert!(is_wanted(&all[1]));
            drop(all.remove(1));
            assert!(waiter.await.unwrap().is_some());
            // It is not closed later, when no client waits.
            all[0].idle();
            assert!(!is_wanted(&all[0]));
        });
    }
}
