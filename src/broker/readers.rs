//! Who waits for messages of a topic and takes none away: every one of them is woken by each arrival,
//! since each is to see it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::TopicId;

#[derive(Debug, Default)]
struct Topics {
    /// No topic is without a reader.
    of_topic: HashMap<TopicId, (Arc<Notify>, usize)>,
    waiting: usize,
}

/// All readers of a node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Readers {
    topics: Arc<Mutex<Topics>>,
}

/// One who waits; it leaves by being dropped.
#[derive(Debug)]
pub(super) struct Reader {
    readers: Readers,
    topic: TopicId,
    notify: Arc<Notify>,
}

impl Readers {
    pub(super) fn join(&self, topic: TopicId) -> Reader {
        let mut topics = self.topics.lock();
        topics.waiting += 1;
        let (notify, count) = topics.of_topic.entry(topic).or_default();
        *count += 1;
        Reader { readers: self.clone(), topic, notify: notify.clone() }
    }

    pub(super) fn arrived(&self, topic: TopicId) {
        if let Some((notify, _)) = self.topics.lock().of_topic.get(&topic) {
            notify.notify_waiters();
        }
    }

    /// Everyone looks again: leadership moved, or a topic is gone.
    pub(super) fn wake_all(&self) {
        for (notify, _) in self.topics.lock().of_topic.values() {
            notify.notify_waiters();
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.topics.lock().waiting
    }
}

impl Reader {
    /// To be enabled before the look, so that what arrives in between is not missed.
    pub(super) fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.notify.notified()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut topics = self.readers.topics.lock();
        topics.waiting -= 1;
        let (_, count) = topics.of_topic.get_mut(&self.topic).expect("it counts this reader");
        *count -= 1;
        if *count == 0 {
            topics.of_topic.remove(&self.topic);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;

    use super::*;

    const TOPIC: TopicId = TopicId::new(1);

    #[test]
    fn one_arrival_wakes_all_readers_of_its_topic() {
        let readers = Readers::default();
        let all = [TOPIC, TOPIC, TopicId::new(2)].map(|topic| readers.join(topic));
        assert_eq!(readers.waiting(), 3);
        let mut woken = all.iter().map(|reader| Box::pin(reader.woken())).collect::<Vec<_>>();
        assert!(woken.iter_mut().all(|woken| !woken.as_mut().enable()), "nothing came yet");
        readers.arrived(TOPIC);
        let woken = woken.into_iter().map(|woken| woken.now_or_never().is_some());
        assert_eq!(woken.collect::<Vec<_>>(), [true, true, false]);
        drop(all);
        assert_eq!(readers.waiting(), 0);
        assert!(readers.topics.lock().of_topic.is_empty());
    }

    #[test]
    fn what_arrives_before_the_wait_and_behind_the_look_wakes() {
        let readers = Readers::default();
        let reader = readers.join(TOPIC);
        let mut woken = pin!(reader.woken());
        woken.as_mut().enable();
        readers.wake_all();
        assert!(woken.now_or_never().is_some());
    }
}
