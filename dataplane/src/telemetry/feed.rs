//! Feeds: what happens, told to every client that follows.
//!
//! Who tells never waits. A client that does not read loses what does not fit its queue, and is told how much that was when there is room.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;

/// Values that wait for a client.
pub(super) const QUEUE: usize = 256;
/// Places behind them: how many were lost is told at the end, however full the queue is, and why it ends.
const LAST: usize = 2;

/// The end that tells.
#[derive(Debug)]
pub struct Feed {
    followers: Vec<Follower>,
    /// Makes the value that says how many were lost.
    lost: fn(u64) -> Value,
}

#[derive(Debug)]
struct Follower {
    topics: u64,
    values: mpsc::Sender<Arc<Value>>,
    lost: u64,
}

impl Follower {
    /// False if the client is gone.
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

    /// True if nothing that was lost is untold. So many places stay free.
    fn settle(&mut self, lost: fn(u64) -> Value, free: usize) -> bool {
        // Room first: most often there is none, and a value is not made for nothing.
        if self.lost > 0
            && self.values.capacity() > free
            && self.values.try_send(Arc::new(lost(self.lost))).is_ok()
        {
            self.lost = 0;
        }
        self.lost == 0
    }
}

/// A client's end.
#[derive(Debug)]
pub struct Subscription {
    /// What it is told first.
    pub(super) first: Value,
    pub(super) values: mpsc::Receiver<Arc<Value>>,
}

impl Subscription {
    /// Values that wait to be sent.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.values.len()
    }
}

impl Feed {
    /// One that nobody follows. `lost` makes the value that tells a client how many it has lost.
    #[must_use]
    pub const fn new(lost: fn(u64) -> Value) -> Self {
        Self { followers: Vec::new(), lost }
    }

    /// A client that follows the topics whose bits are set, and is told `first` at once.
    #[must_use]
    pub fn follow(&mut self, topics: u64, first: Value) -> Subscription {
        let (sender, values) = mpsc::channel(QUEUE + LAST);
        self.followers.push(Follower { topics, values: sender, lost: 0 });
        Subscription { first, values }
    }

    /// True if somebody follows one of the topics.
    #[must_use]
    pub fn is_followed(&self, topics: u64) -> bool {
        self.followers.iter().any(|follower| follower.topics & topics != 0)
    }

    /// Tells those who follow one of the topics.
    pub fn tell(&mut self, topics: u64, value: Value) {
        let (value, lost) = (Arc::new(value), self.lost);
        self.followers.retain_mut(|follower| follower.topics & topics == 0 || follower.put(&value, lost));
    }

    /// Tells clients that have room again what they have lost, and forgets those who are gone. Call it now and then.
    pub fn settle(&mut self) {
        let lost = self.lost;
        self.followers.retain_mut(|follower| {
            follower.settle(lost, LAST);
            !follower.values.is_closed()
        });
    }

    /// Ends it for those who follow nothing but these topics, as [`Feed::end`] does for all.
    /// What they have lost they are told first, and `last` last, for which there is always a place.
    pub fn finish(&mut self, topics: u64, last: Value) {
        let (last, lost) = (Arc::new(last), self.lost);
        for mut follower in self.followers.extract_if(.., |follower| follower.topics & !topics == 0) {
            follower.settle(lost, 1);
            // Full only if the client is gone.
            let _ = follower.values.try_send(Arc::clone(&last));
        }
    }

    /// Ends it: clients are sent what waits for them, how many they have lost, and that it was the last.
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
    fn a_loss_is_told_though_nothing_more_happens() {
        let mut feed = feed();
        let mut client = feed.follow(1, Value::Null);
        (0..=QUEUE).for_each(|n| feed.tell(1, json!(n)));
        feed.settle();
        assert_eq!(read(&mut client).len(), QUEUE);
        feed.settle();
        feed.settle();
        assert_eq!(read(&mut client), [json!({"lost": 1})]);
        // With room for the loss alone, what comes then is lost again.
        (0..QUEUE + 3).for_each(|n| feed.tell(1, json!(n)));
        client.values.try_recv().unwrap();
        feed.tell(1, json!("late"));
        assert_eq!(read(&mut client).last(), Some(&json!({"lost": 3})));
        feed.settle();
        assert_eq!(read(&mut client), [json!({"lost": 1})]);
    }

    #[test]
    fn a_loss_is_told_at_the_end_however_full_the_queue_is() {
        let mut feed = feed();
        let (mut full, mut last) = (feed.follow(1, Value::Null), feed.follow(1, Value::Null));
        (0..QUEUE + 7).for_each(|n| feed.tell(1, json!(n)));
        assert_eq!(read(&mut last).len(), QUEUE);
        feed.settle();
        feed.end();
        let told = read(&mut full);
        assert_eq!((told.len(), told.last()), (QUEUE + 1, Some(&json!({"lost": 7}))));
        assert_eq!(read(&mut last), [json!({"lost": 7})]);
        assert!(!feed.is_followed(1));
        let mut full = feed.follow(1, Value::Null);
        (0..QUEUE + 7).for_each(|n| feed.tell(1, json!(n)));
        feed.finish(1, json!("end"));
        let told = read(&mut full);
        assert_eq!((told.len(), &told[QUEUE..]), (QUEUE + 2, &[json!({"lost": 7}), json!("end")][..]));
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
        assert!(feed.is_followed(1) && feed.is_followed(2), "who follows both");
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
