//! Long polls: who waits for what, woken by effects.
//!
//! A waiter registers before it looks, so that a message which arrives in between wakes it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::{GroupId, TopicId};
use crate::broker::readers::Readers;

/// Members of one group that want the same of one topic wait in one line, first come first served.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Line {
    group: GroupId,
    filter: String,
}

type Queue = VecDeque<(u64, Arc<Notify>)>;

#[derive(Debug, Default)]
struct Lines {
    /// By topic first, so that an arrival walks the lines of its topic and copies nothing. No line
    /// is empty, and no topic is without a line.
    of_topic: HashMap<TopicId, HashMap<Line, Queue>>,
    next_ticket: u64,
    waiting: usize,
}

/// All waiters of a node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiters {
    lines: Arc<Mutex<Lines>>,
    readers: Readers,
}

/// One place in a line; leaving it is dropping it.
#[derive(Debug)]
pub(super) struct Waiter {
    waiters: Waiters,
    topic: TopicId,
    line: Line,
    ticket: u64,
    notify: Arc<Notify>,
}

impl Waiters {
    pub(super) fn join(&self, topic: TopicId, group: GroupId, filter: &str) -> Waiter {
        let line = Line { group, filter: filter.to_owned() };
        let notify = Arc::new(Notify::new());
        let mut lines = self.lines.lock();
        let ticket = lines.next_ticket;
        lines.next_ticket += 1;
        lines.waiting += 1;
        let queue = lines.of_topic.entry(topic).or_default().entry(line.clone()).or_default();
        queue.push_back((ticket, notify.clone()));
        Waiter { waiters: self.clone(), topic, line, ticket, notify }
    }

    /// `count` messages of a topic became visible: in each line at most as many wake up.
    pub(super) fn arrived(&self, topic: TopicId, count: usize) {
        self.readers.arrived(topic);
        let mut lines = self.lines.lock();
        for queue in lines.of_topic.get_mut(&topic).into_iter().flat_map(HashMap::values_mut) {
            wake(queue, count);
        }
    }

    /// `count` messages came back to a group.
    pub(super) fn ready(&self, group: GroupId, topic: TopicId, count: usize) {
        let mut lines = self.lines.lock();
        for (line, queue) in lines.of_topic.get_mut(&topic).into_iter().flatten() {
            if line.group == group {
                wake(queue, count);
            }
        }
    }

    /// Everyone looks again: leadership moved, or a topic or group is gone.
    pub(super) fn wake_all(&self) {
        self.readers.wake_all();
        let lines = self.lines.lock();
        for (_, notify) in lines.of_topic.values().flat_map(HashMap::values).flatten() {
            notify.notify_one();
        }
    }

    /// Whether some member of the group waits with this filter.
    pub(super) fn has(&self, group: GroupId, topic: TopicId, filter: &str) -> bool {
        let line = Line { group, filter: filter.to_owned() };
        self.lines.lock().of_topic.get(&topic).is_some_and(|lines| lines.contains_key(&line))
    }

    pub(super) fn waiting(&self) -> usize {
        self.lines.lock().waiting
    }

    /// Those who take nothing away.
    pub(super) fn readers(&self) -> &Readers {
        &self.readers
    }
}

/// Wakes the first `count` of a line and sends them to its end, so that the next arrival wakes
/// others while these are busy.
fn wake(queue: &mut Queue, count: usize) {
    for _ in 0..count.min(queue.len()) {
        let Some((ticket, notify)) = queue.pop_front() else { break };
        notify.notify_one();
        queue.push_back((ticket, notify));
    }
}

impl Lines {
    fn queue(&mut self, topic: TopicId, line: &Line) -> Option<&mut Queue> {
        self.of_topic.get_mut(&topic)?.get_mut(line)
    }

    fn leave(&mut self, topic: TopicId, line: &Line, ticket: u64) {
        let queue = self.queue(topic, line).expect("a line lasts as long as somebody waits in it");
        queue.retain(|(other, _)| *other != ticket);
        let is_empty = queue.is_empty();
        self.waiting -= 1;
        if !is_empty {
            return;
        }
        let lines = self.of_topic.get_mut(&topic).expect("the line was found in it");
        lines.remove(line);
        if lines.is_empty() {
            self.of_topic.remove(&topic);
        }
    }
}

impl Waiter {
    /// Returns when there may be something; the caller looks and, if not, waits again.
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// There is more than this waiter took: the next in line may look.
    pub(super) fn pass_on(&self) {
        let mut lines = self.waiters.lines.lock();
        let Some(queue) = lines.queue(self.topic, &self.line) else { return };
        let Some(at) = queue.iter().position(|(ticket, _)| *ticket != self.ticket) else { return };
        if let Some((ticket, notify)) = queue.remove(at) {
            notify.notify_one();
            queue.push_back((ticket, notify));
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut lines = self.waiters.lines.lock();
        lines.leave(self.topic, &self.line, self.ticket);
        // A wake-up may have reached this waiter while it was busy, or stopped listening. Wake-ups
        // are given under the lock, so none comes after this look.
        if self.notify.notified().now_or_never().is_some()
            && let Some(queue) = lines.queue(self.topic, &self.line)
        {
            wake(queue, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: TopicId = TopicId::new(1);
    const GROUP: GroupId = GroupId::new(2);

    fn is_woken(waiter: &Waiter) -> bool {
        waiter.woken().now_or_never().is_some()
    }

    #[test]
    fn one_message_wakes_one_member_of_each_group() {
        let waiters = Waiters::default();
        let first = waiters.join(TOPIC, GROUP, "*");
        let second = waiters.join(TOPIC, GROUP, "*");
        let other = waiters.join(TOPIC, GroupId::new(3), "*");
        waiters.arrived(TOPIC, 1);
        assert!(is_woken(&first));
        assert!(!is_woken(&second));
        assert!(is_woken(&other));
        waiters.arrived(TOPIC, 1);
        assert!(is_woken(&second), "the line moves on");
    }

    #[test]
    fn each_filter_has_its_own_line() {
        let waiters = Waiters::default();
        let a = waiters.join(TOPIC, GROUP, "a");
        let b = waiters.join(TOPIC, GROUP, "b");
        waiters.ready(GROUP, TOPIC, 1);
        assert!(is_woken(&a) && is_woken(&b));
    }

    #[test]
    fn a_wake_up_between_looking_and_waiting_is_kept() {
        let waiters = Waiters::default();
        let waiter = waiters.join(TOPIC, GROUP, "*");
        waiters.arrived(TOPIC, 1);
        assert!(is_woken(&waiter));
    }

    #[test]
    fn whoever_leaves_unserved_hands_the_wake_up_on() {
        let waiters = Waiters::default();
        let gone = waiters.join(TOPIC, GROUP, "*");
        let stays = waiters.join(TOPIC, GROUP, "*");
        assert!(!is_woken(&gone));
        waiters.arrived(TOPIC, 1);
        drop(gone);
        assert!(is_woken(&stays));
        drop(stays);
        assert_eq!(waiters.waiting(), 0);
        assert!(waiters.lines.lock().of_topic.is_empty());
    }

    #[test]
    fn a_wake_up_for_a_busy_waiter_is_handed_on_when_it_leaves() {
        let waiters = Waiters::default();
        let busy = waiters.join(TOPIC, GROUP, "*");
        waiters.arrived(TOPIC, 1);
        assert!(is_woken(&busy), "it looks now, and finds a message");
        waiters.arrived(TOPIC, 1);
        let idle = waiters.join(TOPIC, GROUP, "*");
        assert!(!is_woken(&idle));
        drop(busy);
        assert!(is_woken(&idle), "the second message is for somebody");
    }

    #[test]
    fn a_poll_that_ends_in_vain_wakes_nobody() {
        let waiters = Waiters::default();
        let late = waiters.join(TOPIC, GROUP, "*");
        let stays = waiters.join(TOPIC, GROUP, "*");
        assert!(!is_woken(&late));
        drop(late);
        assert!(!is_woken(&stays));
    }

    #[test]
    fn more_than_one_batch_wakes_the_next() {
        let waiters = Waiters::default();
        let first = waiters.join(TOPIC, GROUP, "*");
        let second = waiters.join(TOPIC, GROUP, "*");
        first.pass_on();
        assert!(is_woken(&second));
        drop(first);
        drop(second);
        assert_eq!(waiters.waiting(), 0);
    }
}
