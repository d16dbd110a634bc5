//! Short histories for the tests of checkers.

use crate::history::{
    Answer, DeadLetter, Delivery, Ending, History, Micros, Outcome, Place, QueueBounds, Start,
    Value, Wanted, What,
};

pub(super) fn value(count: u32) -> Value {
    Value { producer: 1, count }
}

pub(super) fn place(offset: u64) -> Place {
    Place { topic: 0, queue: 0, offset }
}

/// A history that is told call by call; times are milliseconds here.
#[derive(Default)]
pub(super) struct Scene {
    pub(super) history: History,
}

impl Scene {
    fn call(mut self, client: u32, what: What, (from, to): (u64, u64), outcome: Outcome) -> Self {
        let call = self.history.invoke(client, what, from * 1000);
        self.history.complete(call, outcome, to * 1000);
        self
    }

    pub(super) fn sent(self, count: u32, offset: u64, during: (u64, u64)) -> Self {
        let what = What::Send { topic: 0, value: value(count) };
        self.call(1, what, during, Outcome::Ok(Answer::Sent(place(offset))))
    }

    pub(super) fn send_failed(self, count: u32, during: (u64, u64)) -> Self {
        let what = What::Send { topic: 0, value: value(count) };
        self.call(1, what, during, Outcome::Fail("no".to_owned()))
    }

    pub(super) fn send_unknown(self, count: u32, during: (u64, u64)) -> Self {
        let what = What::Send { topic: 0, value: value(count) };
        self.call(1, what, during, Outcome::Unknown("?".to_owned()))
    }

    pub(super) fn prepared(self, count: u32, id: &str, during: (u64, u64)) -> Self {
        let what = What::Prepare { topic: 0, value: value(count) };
        self.call(1, what, during, Outcome::Ok(Answer::Prepared(id.to_owned())))
    }

    pub(super) fn ended(
        self,
        count: u32,
        commit: bool,
        during: (u64, u64),
        outcome: Outcome,
    ) -> Self {
        self.call(1, What::End { topic: 0, value: value(count), commit }, during, outcome)
    }

    pub(super) fn committed(self, count: u32, offset: u64, during: (u64, u64)) -> Self {
        self.ended(count, true, during, Outcome::Ok(Answer::Sent(place(offset))))
    }

    pub(super) fn asked(self, count: Option<u32>, during: (u64, u64)) -> Self {
        let answer = Answer::Asked(count.map(value));
        self.call(4, What::Listen { topic: 0 }, during, Outcome::Ok(answer))
    }

    /// Group 0 gets values with their offsets, for a second each.
    pub(super) fn received(
        self,
        messages: &[(u32, u64)],
        attempt: u32,
        during: (u64, u64),
    ) -> Self {
        let delivery = |(count, offset): &(u32, u64)| Delivery {
            place: place(*offset),
            value: Some(value(*count)),
            attempt,
        };
        let answer = Answer::Received(messages.iter().map(delivery).collect());
        self.receive(during, Outcome::Ok(answer))
    }

    pub(super) fn received_rubbish(self, offset: u64, during: (u64, u64)) -> Self {
        let delivery = Delivery { place: place(offset), value: None, attempt: 1 };
        self.receive(during, Outcome::Ok(Answer::Received(vec![delivery])))
    }

    pub(super) fn receive(self, during: (u64, u64), outcome: Outcome) -> Self {
        self.receive_of(Wanted::All, during, outcome)
    }

    pub(super) fn receive_of(self, wants: Wanted, during: (u64, u64), outcome: Outcome) -> Self {
        let invisible: Micros = 1_000_000;
        self.call(2, What::Receive { group: 0, topic: 0, invisible, wants }, during, outcome)
    }

    pub(super) fn acked(self, offset: u64, attempt: u32, during: (u64, u64)) -> Self {
        let what = What::Ack { group: 0, place: place(offset), attempt };
        self.call(2, what, during, Outcome::Ok(Answer::Done))
    }

    pub(super) fn held(
        self,
        (offset, attempt): (u64, u32),
        millis: u64,
        during: (u64, u64),
    ) -> Self {
        let invisible = millis * 1000;
        let what = What::Hold { group: 0, place: place(offset), attempt, invisible };
        self.call(2, what, during, Outcome::Ok(Answer::Done))
    }

    /// A message due at `due`, in milliseconds.
    pub(super) fn delayed(self, count: u32, due: u64, handle: &str, during: (u64, u64)) -> Self {
        let what = What::SendDelayed { topic: 0, value: value(count), due: due * 1000 };
        self.call(1, what, during, Outcome::Ok(Answer::Scheduled(handle.to_owned())))
    }

    /// A recall and what it was told.
    pub(super) fn told(self, count: u32, ending: Ending, during: (u64, u64)) -> Self {
        let what = What::Recall { topic: 0, value: value(count) };
        self.call(1, what, during, Outcome::Ok(Answer::Ended(ending)))
    }

    pub(super) fn moved(self, count: u32, due: u64, during: (u64, u64)) -> Self {
        let what = What::Reschedule { topic: 0, value: value(count), due: due * 1000 };
        self.call(1, what, during, Outcome::Ok(Answer::Ended(Ending::Rescheduled)))
    }

    /// Group 0 comes into being.
    pub(super) fn made(self, latest: bool, during: (u64, u64)) -> Self {
        self.call(5, What::CreateGroup { group: 0, latest }, during, Outcome::Ok(Answer::Done))
    }

    pub(super) fn paused(self, paused: bool, during: (u64, u64)) -> Self {
        self.call(5, What::Pause { group: 0, paused }, during, Outcome::Ok(Answer::Done))
    }

    /// Group 0 goes on in topic 0 from these offsets, by queue.
    pub(super) fn reset(self, to: Start, queues: &[(u32, u64)], during: (u64, u64)) -> Self {
        let what = What::Reset { group: 0, topic: 0, to };
        self.call(5, what, during, Outcome::Ok(Answer::Reset(queues.to_vec())))
    }

    pub(super) fn redriven(self, letters: &[DeadLetter], during: (u64, u64)) -> Self {
        let answer = Outcome::Ok(Answer::Redriven(letters.to_vec()));
        self.call(5, What::Redrive { group: 0 }, during, answer)
    }

    pub(super) fn listed(self, letters: &[DeadLetter], during: (u64, u64)) -> Self {
        let answer = Outcome::Ok(Answer::Dead(letters.to_vec()));
        self.call(5, What::ListDead { group: 0 }, during, answer)
    }

    /// Dead letters as messages, by offset.
    pub(super) fn letters(self, letters: &[(u64, Option<u32>)], during: (u64, u64)) -> Self {
        let letters = letters.iter().map(|(at, count)| (*at, count.map(value)));
        let answer = Outcome::Ok(Answer::Letters(letters.collect()));
        self.call(6, What::ReceiveDead { group: 0 }, during, answer)
    }

    pub(super) fn bounds(self, start: u64, end: u64, during: (u64, u64)) -> Self {
        let bounds = vec![QueueBounds { queue: 0, start, end }];
        self.call(3, What::Bounds { topic: 0 }, during, Outcome::Ok(Answer::Bounds(bounds)))
    }
}

pub(super) fn checks(findings: &super::Findings) -> Vec<&'static str> {
    findings.violations.iter().map(|violation| violation.check).collect()
}
