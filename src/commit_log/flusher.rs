//! Makes the log durable: one queue, one sync for all that waited, completions in order.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::Mutant;
use crate::commit_log::flushed_mark::Mark;
use crate::commit_log::queue::{Appended, Task};
use crate::commit_log::segment::Segment;
use crate::commit_log::shared::{Shared, Turn};
use crate::commit_log::stats::add;
use crate::commit_log::{Completion, Vote, vote_file};

/// Works off the queue of one log. Ends after all handles of the log are gone and all that they
/// asked for is done.
#[derive(Debug)]
pub struct Flusher {
    pub(super) shared: Arc<Shared>,
}

impl Flusher {
    /// For a thread: blocks until the log is closed.
    pub fn run(self) {
        while self.shared.queue.wait() {
            self.shared.flush();
        }
    }

    /// For a task: returns when there is something for [`Self::step`]; false once the log is closed
    /// and nothing is left.
    pub async fn wait(&self) -> bool {
        poll_fn(|context| self.shared.queue.poll_wait(context)).await
    }

    /// For a simulator or a test: works off what waits now; false when nothing did.
    pub fn step(&self) -> bool {
        self.shared.flush()
    }
}

/// What one sync will cover.
#[derive(Default)]
struct Group {
    segments: Vec<Arc<Segment>>,
    named: bool,
    through: Option<Mark>,
    done: Vec<Completion>,
}

impl Group {
    fn add(&mut self, appended: Appended) {
        for segment in appended.segments {
            let known = |other: &Arc<Segment>| Arc::ptr_eq(other, &segment);
            if !self.segments.iter().rev().any(known) {
                self.segments.push(segment);
            }
        }
        self.named |= appended.named;
        assert!(Some(appended.through) > self.through, "appends come in order");
        self.through = Some(appended.through);
        self.done.push(appended.done);
    }
}

impl Shared {
    /// Works off the queue once; false when it was empty.
    pub(super) fn flush(&self) -> bool {
        let turn = &mut *self.turn.lock();
        let tasks = self.queue.take();
        if tasks.is_empty() {
            return false;
        }
        self.work_off(turn, tasks);
        true
    }

    fn work_off(&self, turn: &mut Turn, tasks: VecDeque<Task>) {
        let mut group = Group::default();
        for task in tasks {
            match task {
                Task::Append(appended) => group.add(appended),
                Task::Barrier { done } => group.done.push(done),
                Task::Vote { vote, done } => {
                    self.settle(turn, std::mem::take(&mut group));
                    done(self.settle_vote(vote));
                }
            }
        }
        self.settle(turn, group);
    }

    fn settle(&self, turn: &mut Turn, group: Group) {
        let result = self.sync(turn, &group);
        for done in group.done {
            done(result.as_ref().copied().map_err(io::Error::from));
        }
    }

    fn sync(&self, turn: &mut Turn, group: &Group) -> Result<(), crate::commit_log::Stopped> {
        self.running()?;
        let Some(through) = group.through else { return Ok(()) };
        let started = self.env.clock.monotonic();
        for segment in group.segments.iter().filter(|_| !Mutant::AckBeforeFsync.is_on()) {
            segment.file.sync_data().map_err(|error| self.stop("a sync of the log", &error))?;
        }
        if group.named {
            let synced = self.env.disk.sync_dir(&self.dir);
            synced.map_err(|error| self.stop("a sync of the log's directory", &error))?;
        }
        self.counters.synced(self.env.clock.monotonic().saturating_sub(started));
        {
            let mut state = self.state.write();
            assert!(state.flushed < Some(through.0), "what is durable only grows between cuts");
            assert!(
                state.last.is_none_or(|last| last >= through),
                "no more is durable than is there"
            );
            state.flushed = Some(through.0);
        }
        if let Err(error) = turn.flushed.set(Some(through)) {
            self.stop("a write of the flushed mark", &error);
        }
        if group.named {
            self.ask_upkeep();
        }
        Ok(())
    }

    fn settle_vote(&self, vote: Vote) -> io::Result<()> {
        self.running().map_err(|stopped| io::Error::from(&stopped))?;
        if let Err(error) = vote_file::save(&*self.env.disk, &self.dir, vote) {
            return Err((&self.stop("a write of the vote", &error)).into());
        }
        self.state.write().vote = Some(vote);
        add(&self.counters.votes, 1);
        Ok(())
    }

    /// No more tasks will come: flusher and upkeep end when they are done.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.queue.close();
        self.ask_upkeep();
    }
}
