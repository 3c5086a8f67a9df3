//! Places for clients: as many as are served at a time. When all are taken the client that has been idle for longest gives
//! its place up; one more place is kept for root.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Most clients at a time.
pub const MAX_CLIENTS: usize = 16;
/// Most clients that wait for a place.
const MAX_WAITING: usize = 16;

/// A client that waits for what its peer asks next.
#[derive(Debug)]
struct Idle {
    client: u64,
    /// Ends its task.
    close: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Clients {
    next: u64,
    waiting: usize,
    /// Those that are idle, the longest first.
    idle: Vec<Idle>,
}

impl Clients {
    fn close_oldest(&mut self) {
        if !self.idle.is_empty() {
            self.idle.remove(0).close.notify_one();
        }
    }
}

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    for_root: Arc<Semaphore>,
    clients: Mutex<Clients>,
}

/// A client's place; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    client: u64,
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

    /// A place for a client, which may take until another one has its answer. `None` if too many wait already.
    pub(super) async fn take(self: &Arc<Self>, is_root: bool) -> Option<Place> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(self.place(permit));
        }
        {
            let mut clients = self.clients();
            if clients.waiting >= MAX_WAITING && !is_root {
                return None;
            }
            clients.waiting += 1;
            clients.close_oldest();
        }
        let free = Arc::clone(&self.free).acquire_owned();
        let permit = if is_root {
            tokio::select! {
                biased;
                permit = Arc::clone(&self.for_root).acquire_owned() => permit,
                permit = free => permit,
            }
        } else {
            free.await
        };
        self.clients().waiting -= 1;
        Some(self.place(permit.ok()?))
    }

    fn place(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Place {
        let mut clients = self.clients();
        clients.next += 1;
        let (client, close) = (clients.next, Arc::new(Notify::new()));
        drop(clients);
        Place { places: Arc::clone(self), client, close, _permit: permit }
    }
}

impl Place {
    /// The client is idle: its place is another one's if that is wanted, which [`Place::wanted`] reports.
    pub(super) fn idle(&self) {
        let mut clients = self.places.clients();
        clients.idle.push(Idle { client: self.client, close: Arc::clone(&self.close) });
        if clients.waiting > 0 {
            clients.close_oldest();
        }
    }

    /// The client has asked something, and keeps its place until that is answered.
    pub(super) fn busy(&self) {
        self.places.clients().idle.retain(|idle| idle.client != self.client);
    }

    /// Waits until the place is wanted for another client.
    pub(super) async fn wanted(&self) {
        self.close.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.busy();
    }
}
