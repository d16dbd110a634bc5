//! What waits for the disk, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::commit_log::flushed_mark::Mark;
use crate::commit_log::segment::Segment;
use crate::commit_log::{Completion, Vote};

/// One thing that must become durable.
pub(super) enum Task {
    Append(Appended),
    Vote {
        vote: Vote,
        done: Completion,
    },
    /// Nothing of its own: done when all before it is.
    Barrier {
        done: Completion,
    },
}

/// Frames that were written and now need a sync.
pub(super) struct Appended {
    /// The last one.
    pub(super) through: Mark,
    /// The segments that hold them, in order.
    pub(super) segments: Vec<Arc<Segment>>,
    /// Whether a segment file got its name.
    pub(super) named: bool,
    pub(super) done: Completion,
}

/// Tasks in the order in which they were asked for.
#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    bell: Condvar,
}

#[derive(Default)]
struct Inner {
    tasks: VecDeque<Task>,
    closed: bool,
    waker: Option<Waker>,
}

impl Queue {
    pub(super) fn push(&self, task: Task) {
        let waker = {
            let mut inner = self.inner.lock();
            inner.tasks.push_back(task);
            inner.waker.take()
        };
        self.ring(waker);
    }

    /// No more tasks will come.
    pub(super) fn close(&self) {
        let waker = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            inner.waker.take()
        };
        self.ring(waker);
    }

    fn ring(&self, waker: Option<Waker>) {
        self.bell.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inner.lock().tasks.is_empty()
    }

    pub(super) fn take(&self) -> VecDeque<Task> {
        std::mem::take(&mut self.inner.lock().tasks)
    }

    /// Blocks until there are tasks; false when the queue is closed and empty.
    pub(super) fn wait(&self) -> bool {
        let mut inner = self.inner.lock();
        while inner.tasks.is_empty() && !inner.closed {
            self.bell.wait(&mut inner);
        }
        !inner.tasks.is_empty()
    }

    /// The same for a task of an executor.
    pub(super) fn poll_wait(&self, context: &Context<'_>) -> Poll<bool> {
        let mut inner = self.inner.lock();
        if inner.tasks.is_empty() && !inner.closed {
            inner.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(!inner.tasks.is_empty())
    }
}
