//! Faults that this program can be given on purpose, so that a test of the tests is possible: each
//! must be caught by a check of the simulator. Only a build with the feature `mutants` can have
//! one; in any other [`Mutant::is_on`] is `false` when it is compiled.

#[cfg(feature = "mutants")]
use std::sync::OnceLock;

#[cfg(feature = "mutants")]
static CHOSEN: OnceLock<Mutant> = OnceLock::new();

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// One such fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[$doc])* $name,)*
        }

        impl Mutant {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

mutants! {
    /// Appends are confirmed without a sync.
    AckBeforeFsync = "ack-before-fsync",
    /// A vote is confirmed while it is in the page cache only.
    VoteNotSynced = "vote-not-synced",
    /// A leader counts a follower's entries when they are sent.
    AckBeforeQuorum = "ack-before-quorum",
    /// A hand-out takes the unit from the queue file, where there is one.
    ApplyReadsUnit = "apply-reads-unit",
    /// A checkpoint is published without waiting for the log below it.
    CheckpointAhead = "checkpoint-ahead",
    /// A checkpoint has no deliveries in it.
    CheckpointPartial = "checkpoint-partial",
    /// Messages are handed out before their checkout is committed.
    DeliverUncommitted = "deliver-uncommitted",
    /// A node that lost its disk takes part under its old id.
    WipedNodeVotes = "wiped-node-votes",
    /// A leader answers reads without asking whether it still leads.
    StaleLeaderRead = "stale-leader-read",
    /// The log's front passes messages that are under way.
    PurgeAboveReference = "purge-above-reference",
    /// Recovery takes frames with a wrong checksum.
    TornTailAccepted = "torn-tail-accepted",
    /// A sent message is told the offset that was next when it came.
    OffsetAtAppend = "offset-at-append",
    /// A stamp is the clock's, whatever the stamp before was.
    StampBeforeIndex = "stamp-before-index",
    /// Skipped messages stay skipped though the group wants others now.
    SkipKept = "skip-kept",
    /// A segment is written over while readers hold bytes of it.
    LentRecycled = "lent-recycled",
    /// A checkpoint has no memory of sent messages in it.
    DedupLeftOut = "dedup-left-out",
    /// What is out of a message group does not hold back the rest of it.
    LineOvertaken = "line-overtaken",
    /// A recall is answered, and the message stays.
    RecallIgnored = "recall-ignored",
    /// A change of the time is answered, and the time stays.
    RescheduleIgnored = "reschedule-ignored",
    /// Delayed messages fire before their time.
    FiredEarly = "fired-early",
    /// A checkpoint has no delayed messages in it.
    TimersLeftOut = "timers-left-out",
    /// Whoever decides after the first one is told that it was as it says.
    LastDecisionTold = "last-decision-told",
    /// What is rolled back becomes visible.
    RolledBackShown = "rolled-back-shown",
    /// What only others of a group want is passed by like what nobody wants.
    SkipWanted = "skip-wanted",
    /// The entry that ends a last attempt drops the message.
    DeadLetterLost = "dead-letter-lost",
    /// A message dies one attempt early.
    DeadEarly = "dead-early",
    /// A dead letter that went back is still one.
    RedriveKept = "redrive-kept",
    /// A paused group is handed messages.
    PausedHandsOut = "paused-hands-out",
    /// A handle of before a reset ends its message.
    ResetKeepsInFlight = "reset-keeps-in-flight",
}

impl Mutant {
    #[cfg(feature = "mutants")]
    pub fn is_on(self) -> bool {
        CHOSEN.get() == Some(&self)
    }

    #[cfg(not(feature = "mutants"))]
    pub const fn is_on(self) -> bool {
        let _ = self;
        false
    }

    /// Turns this process into the mutant, for good.
    #[cfg(feature = "mutants")]
    pub fn choose(self) {
        assert_eq!(*CHOSEN.get_or_init(|| self), self, "a process is one mutant at most");
    }
}
