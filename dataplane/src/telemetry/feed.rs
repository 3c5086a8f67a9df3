//! Feeds: events that are sent to every subscribed client.
//!
//! The publisher never waits. A client that does not read loses the events that do not fit into its queue. It
//! receives their number when there is room.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;

/// Length of a client's queue.
pub(super) const QUEUE: usize = 256;
/// Additional entries for the final values: the number of lost events and the reason for the end.
const LAST: usize = 2;

/// The publishing side.
#[derive(Debug)]
pub struct Feed {
    followers: Vec<Follower>,
    /// Creates the value that reports a number of lost events.
    lost: fn(u64) -> Value,
}

#[derive(Debug)]
struct Follower {
    topics: u64,
    values: mpsc::Sender<Arc<Value>>,
    lost: u64,
}

impl Follower {
    /// Adds a value. Returns false if the client is gone.
    fn put(&mut self, value: &Arc<Value>, lost: fn(u64) -> Value) -> bool {
        if (self.lost == 0 || self.settle(lost, LAST)) && self.values.capacity() > LAST {
            match self.values.try_send(Arc::clone(value)) {
                Ok(()) => return true,
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
                Err(mpsc::error::TrySendError::Full(_)) => {}
            }
        }
        self.lost += 1;
        !self.values.is_closed()
    }

    /// Reports lost events if that leaves `free` entries. Returns true if no unreported losses remain.
    fn settle(&mut self, lost: fn(u64) -> Value, free: usize) -> bool {
        // Check the room first: usually there is none, and the value need not be created.
        if self.lost > 0
            && self.values.capacity() > free
            && self.values.try_send(Arc::new(lost(self.lost))).is_ok()
        {
            self.lost = 0;
        }
        self.lost == 0
    }
}

/// A client's side.
#[derive(Debug)]
pub struct Subscription {
    /// The first value to send.
    pub(super) first: Value,
    pub(super) values: mpsc::Receiver<Arc<Value>>,
}

impl Subscription {
    /// Number of values waiting to be sent.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.values.len()
    }
}

impl Feed {
    /// Creates a feed without clients. `lost` creates the value that reports a number of lost events.
    #[must_use]
    pub const fn new(lost: fn(u64) -> Value) -> Self {
        Self { followers: Vec::new(), lost }
    }

    /// Subscribes a client to the topics in the bit mask. `first` is sent immediately.
    #[must_use]
    pub fn follow(&mut self, topics: u64, first: Value) -> Subscription {
        let (sender, values) = mpsc::channel(QUEUE + LAST);
        self.followers.push(Follower { topics, values: sender, lost: 0 });
        Subscription { first, values }
    }

    /// True if any client is subscribed to one of the topics.
    #[must_use]
    pub fn is_followed(&self, topics: u64) -> bool {
        self.followers.iter().any(|follower| follower.topics & topics != 0)
    }

    /// Sends a value to the clients subscribed to one of the topics.
    pub fn tell(&mut self, topics: u64, value: Value) {
        let (value, lost) = (Arc::new(value), self.lost);
        self.followers.retain_mut(|follower| follower.topics & topics == 0 || follower.put(&value, lost));
    }

    /// Reports losses to clients that have room again, and removes disconnected ones. Call it periodically.
    pub fn settle(&mut self) {
        let lost = self.lost;
        self.followers.retain_mut(|follower| {
            follower.settle(lost, LAST);
            !follower.values.is_closed()
        });
    }

    /// Ends the feed for clients that are subscribed only to these topics, like [`Feed::end`]. They receive
    /// their number of lost events, then `last`, for which there is always room.
    pub fn finish(&mut self, topics: u64, last: Value) {
        let (last, lost) = (Arc::new(last), self.lost);
        for mut follower in self.followers.extract_if(.., |follower| follower.topics & !topics == 0) {
            follower.settle(lost, 1);
            // Full only if the client is gone.
            let _ = follower.values.try_send(Arc::clone(&last));
        }
    }

    /// Ends the feed. Clients receive the queued values, the number of lost ones, and the end mark.
    pub fn end(&mut self) {
        for mut follower in self.followers.drain(..) {
            follower.settle(self.lost, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn feed() -> Feed {
        Feed::new(|n| json!({"lost": n}))
    }

    fn read(subscription: &mut Subscription) -> Vec<Value> {
        std::iter::from_fn(|| subscription.values.try_recv().ok()).map(|v| (*v).clone()).collect()
    }

    #[test]
    fn each_client_has_its_topics_and_its_losses() {
        let mut feed = feed();
        assert!(!feed.is_followed(!0));
        let (mut all, mut second) = (feed.follow(!0, Value::Null), feed.follow(2, Value::Null));
        assert!(feed.is_followed(1) && feed.is_followed(2));
        feed.tell(1, json!("a"));
        feed.tell(2, json!("b"));
        assert_eq!(read(&mut all), [json!("a"), json!("b")]);
        assert_eq!(read(&mut second), [json!("b")]);
        // One does not read: the other loses nothing.
        for n in 0..QUEUE + 10 {
            feed.tell(2, json!(n));
            assert_eq!(read(&mut all), [json!(n)]);
        }
        assert_eq!(read(&mut second).len(), QUEUE);
        feed.tell(2, json!("next"));
        assert_eq!(read(&mut second), [json!({"lost": 10}), json!("next")]);
    }

    #[test]
    fn a_loss_is_reported_without_further_events() {
        let mut feed = feed();
        let mut client = feed.follow(1, Value::Null);
        (0..=QUEUE).for_each(|n| feed.tell(1, json!(n)));
        feed.settle();
        assert_eq!(read(&mut client).len(), QUEUE);
        feed.settle();
        feed.settle();
        assert_eq!(read(&mut client), [json!({"lost": 1})]);
        // Room only for the loss report: the next value is lost again.
        (0..QUEUE + 3).for_each(|n| feed.tell(1, json!(n)));
        client.values.try_recv().unwrap();
        feed.tell(1, json!("late"));
        assert_eq!(read(&mut client).last(), Some(&json!({"lost": 3})));
        feed.settle();
        assert_eq!(read(&mut client), [json!({"lost": 1})]);
    }

    #[test]
    fn a_loss_is_reported_at_the_end_even_with_a_full_queue() {
        let mut feed = feed();
        let (mut full, mut last) = (feed.follow(1, Value::Null), feed.follow(1, Value::Null));
        (0..QUEUE + 7).for_each(|n| feed.tell(1, json!(n)));
        assert_eq!(read(&mut last).len(), QUEUE);
        feed.settle();
        feed.end();
        let values = read(&mut full);
        assert_eq!((values.len(), values.last()), (QUEUE + 1, Some(&json!({"lost": 7}))));
        assert_eq!(read(&mut last), [json!({"lost": 7})]);
        assert!(!feed.is_followed(1));
        let mut full = feed.follow(1, Value::Null);
        (0..QUEUE + 7).for_each(|n| feed.tell(1, json!(n)));
        feed.finish(1, json!("end"));
        let values = read(&mut full);
        assert_eq!((values.len(), &values[QUEUE..]), (QUEUE + 2, &[json!({"lost": 7}), json!("end")][..]));
    }

    #[test]
    fn one_topic_ends_while_others_go_on() {
        let mut feed = feed();
        let (mut one, mut other) = (feed.follow(1, Value::Null), feed.follow(2, Value::Null));
        let mut both = feed.follow(3, Value::Null);
        feed.finish(1, json!("last"));
        feed.tell(3, json!("more"));
        assert_eq!(read(&mut one), [json!("last")]);
        assert!(one.values.is_closed());
        assert_eq!((read(&mut other), read(&mut both).len()), (vec![json!("more")], 1));
        assert!(feed.is_followed(1) && feed.is_followed(2), "the one subscribed to both");
    }

    #[test]
    fn clients_that_are_gone_are_forgotten() {
        let mut feed = feed();
        drop(feed.follow(1, Value::Null));
        let other = feed.follow(2, Value::Null);
        feed.settle();
        assert!(!feed.is_followed(1) && feed.is_followed(2));
        drop(other);
        feed.tell(2, Value::Null);
        assert!(!feed.is_followed(2));
    }
}
