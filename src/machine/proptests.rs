//! Random deliveries against a model that knows every offset, with restarts and power cuts.

mod instances;
mod model;
mod order;

use proptest::prelude::*;

use self::model::{At, Model};
use super::tests::{Bench, names};
use super::{HandleState, QueueView, Standing};
use crate::base::{ClientId, GroupId, GroupName, Millis, QueueId, QueueOffset};
use crate::command::{
    Ack, Begin, Command, CreateGroup, Delivery, DeliveryOutcome, GiveUp, Grant, Granted, Handle,
    Hold, OrderRule, Redrive, Redriven, Release, Renew, Reply, Reset, Return, Start, StartAt,
    StoreOffset, UpdateGroup,
};

const GROUPS: [GroupId; 3] = [GroupId::new(1), GroupId::new(2), LATE];
/// Begins only when that is decided.
const LATE: GroupId = GroupId::new(3);
const ATTEMPTS_MAX: u32 = 2;

#[derive(Clone, Debug)]
enum Step {
    Publish {
        count: usize,
    },
    /// `behind` resets: computed before so many of them.
    Checkout {
        group: usize,
        consumer: u8,
        attempt: Option<u8>,
        skip: (u64, u64),
        at: Vec<u64>,
        behind: u32,
    },
    Ack {
        pick: usize,
    },
    Hold {
        pick: usize,
        millis: u64,
    },
    Renew {
        pick: usize,
        millis: u64,
    },
    Release {
        group: usize,
        consumer: u8,
        millis: u64,
    },
    Return {
        pick: usize,
        millis: u64,
    },
    GiveUp {
        pick: usize,
    },
    Redrive {
        group: usize,
        letters: Vec<u64>,
    },
    Start {
        at: u64,
    },
    Reset {
        group: usize,
        to: u64,
    },
    Pause {
        group: usize,
        paused: bool,
    },
    Store {
        group: usize,
        offset: u64,
    },
    Tick {
        limit: u32,
    },
    Wait {
        millis: u64,
    },
    Checkpoint,
    Restart,
    PowerCut {
        seed: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let group = 0..GROUPS.len();
    let millis = prop_oneof![Just(0_u64), 1..2_000_u64];
    prop_oneof![
        3 => (1..6_usize).prop_map(|count| Step::Publish { count }),
        6 => (group.clone(), 0..3_u8, prop::option::of(0..3_u8), (0..40_u64, 0..6_u64),
              prop::collection::vec(0..45_u64, 0..6), prop_oneof![9 => Just(0_u32), 1 => Just(1)])
            .prop_map(|(group, consumer, attempt, skip, at, behind)| Step::Checkout {
                group, consumer, attempt, skip, at, behind
            }),
        1 => (0..45_u64).prop_map(|at| Step::Start { at }),
        1 => (group.clone(), 0..45_u64).prop_map(|(group, to)| Step::Reset { group, to }),
        1 => (group.clone(), prop_oneof![3 => Just(false), 1 => Just(true)])
            .prop_map(|(group, paused)| Step::Pause { group, paused }),
        1 => (group.clone(), 0..45_u64)
            .prop_map(|(group, offset)| Step::Store { group, offset }),
        5 => (0..64_usize).prop_map(|pick| Step::Ack { pick }),
        2 => (0..64_usize, millis.clone()).prop_map(|(pick, millis)| Step::Hold { pick, millis }),
        2 => (0..64_usize, millis.clone()).prop_map(|(pick, millis)| Step::Renew { pick, millis }),
        1 => (group.clone(), 0..3_u8, millis.clone())
            .prop_map(|(group, consumer, millis)| Step::Release { group, consumer, millis }),
        1 => (0..64_usize, millis).prop_map(|(pick, millis)| Step::Return { pick, millis }),
        1 => (0..64_usize).prop_map(|pick| Step::GiveUp { pick }),
        2 => (group, prop::collection::vec(0..12_u64, 1..6))
            .prop_map(|(group, letters)| Step::Redrive { group, letters }),
        3 => (0..6_u32).prop_map(|limit| Step::Tick { limit }),
        3 => (1..1_500_u64).prop_map(|millis| Step::Wait { millis }),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
        1 => any::<u64>().prop_map(|seed| Step::PowerCut { seed }),
    ]
}

struct Run {
    bench: Bench,
    model: Model,
    handles: Vec<Handle>,
}

fn consumer(number: u8) -> ClientId {
    ClientId::new(&format!("consumer-{number}")).unwrap()
}

impl Run {
    fn new() -> Self {
        let mut bench = Bench::with_topic(1);
        bench.apply(names::group("audit"));
        for group in [GROUPS[0], GROUPS[1]] {
            let attempts_max = Some(ATTEMPTS_MAX);
            let update = UpdateGroup { group, attempts_max, backoff: None, dead_keep: None };
            bench.apply(Command::UpdateGroup(update));
        }
        bench.apply(Command::CreateGroup(CreateGroup {
            name: GroupName::new("late").unwrap(),
            attempts_max: ATTEMPTS_MAX,
            backoff: Vec::new().into(),
            rule: OrderRule::default(),
            dead_keep: None,
            begin: Begin { start: StartAt::Latest, paused: false },
        }));
        Self { bench, model: Model::default(), handles: Vec::new() }
    }

    /// A handle of those that were ever given: mostly a live one, else the newest ones first.
    fn pick(&self, pick: usize) -> Option<Handle> {
        let live: Vec<_> =
            GROUPS.iter().flat_map(|group| self.model.flying(*group, |_| true)).collect();
        if !pick.is_multiple_of(3) && !live.is_empty() {
            return Some(live[pick % live.len()]);
        }
        self.handles.iter().rev().nth(pick % self.handles.len().clamp(1, 64)).copied()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish { count } => {
                self.bench.publish(0, count);
                self.model.end += count as u64;
            }
            Step::Checkout { group, consumer, attempt, skip, ref at, behind } => {
                let group = GROUPS[group];
                let epoch = self.model.known(group).epoch;
                let epoch = epoch.saturating_sub(behind);
                self.checkout((group, epoch), consumer, attempt, (skip, at));
            }
            Step::Start { at } => self.start(at),
            Step::Reset { group, to } => self.reset(GROUPS[group], to),
            Step::Pause { group, paused } => {
                let group = GROUPS[group];
                self.bench.apply(Command::Pause { group, paused });
                self.model.known(group).paused = paused;
            }
            Step::Store { group, offset } => self.store(GROUPS[group], offset),
            Step::Ack { pick } => self.ack(pick),
            Step::Hold { pick, millis } => self.hold(pick, millis),
            Step::Renew { pick, millis } => self.renew(pick, millis),
            Step::Release { group, consumer, millis } => {
                self.release(GROUPS[group], consumer, millis);
            }
            Step::Return { pick, millis } => self.give_back(pick, millis),
            Step::GiveUp { pick } => self.give_up(pick),
            Step::Redrive { group, ref letters } => self.redrive(GROUPS[group], letters),
            Step::Tick { limit } => self.tick(limit),
            Step::Wait { millis } => self.bench.stamp += millis,
            Step::Checkpoint => drop(self.bench.checkpoint()),
            Step::Restart => self.restart(None),
            Step::PowerCut { seed } => self.restart(Some(seed)),
        }
        self.model.settle();
        self.compare();
    }

    fn restart(&mut self, cut: Option<u64>) {
        let hashes = self.bench.hashes();
        match cut {
            Some(seed) => self.bench.sim.disk.power_cut(seed),
            None => self.bench.sim.disk.kill(),
        }
        self.bench.restart();
        assert_eq!(self.bench.hashes(), hashes);
    }

    fn start(&mut self, at: u64) {
        let offsets = vec![QueueOffset::new(at)];
        let start = Start { group: LATE, topic: names::TOPIC, offsets };
        assert_eq!(self.bench.reply(Command::Start(start)), Reply::Done);
        if !self.model.has_begun(LATE) {
            let at = usize::try_from(at.min(self.model.end)).unwrap();
            self.model.groups.insert(LATE, vec![At::Done; at]);
        }
    }

    fn reset(&mut self, group: GroupId, to: u64) {
        let offsets = vec![(QueueId::new(0), QueueOffset::new(to))];
        let reply = self.bench.reply(Command::Reset(Reset { group, topic: names::TOPIC, offsets }));
        if self.model.has_begun(group) {
            self.model.put(group, to);
            assert_eq!(reply, Reply::Reset { epoch: self.model.known(group).epoch });
        } else {
            assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        }
    }

    fn store(&mut self, group: GroupId, offset: u64) {
        let (topic, queue) = (names::TOPIC, QueueId::new(0));
        let store = StoreOffset { group, topic, queue, offset: QueueOffset::new(offset) };
        let reply = self.bench.reply(Command::StoreOffset(store));
        if self.model.has_begun(group) {
            self.model.store(group, offset);
            assert_eq!(reply, Reply::Done);
        } else {
            assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        }
        let stored = self.bench.machine.state().stored_offset((group, topic), queue);
        assert_eq!(stored.map(QueueOffset::get), self.model.known(group).stored);
    }

    fn checkout(
        &mut self,
        (group, epoch): (GroupId, u32),
        who: u8,
        attempt: Option<u8>,
        (skip, at): ((u64, u64), &Vec<u64>),
    ) {
        let mut checkout = self.bench.checkout("x", &[]);
        checkout.group = group;
        checkout.epoch = epoch;
        checkout.consumer = consumer(who);
        checkout.attempt_id = attempt.map(|attempt| attempt.to_string());
        checkout.invisible = Millis::new(1_000);
        checkout.takes[0].skips = vec![names::skip(skip.0, skip.0 + skip.1)];
        let grant =
            |at: &u64| Grant { offset: QueueOffset::new(*at), unit: self.bench.unit(0, *at) };
        checkout.takes[0].grants = at.iter().map(grant).collect();
        let got = self.bench.check_out(checkout).granted;
        let now = self.bench.stamp;
        let standing = self.model.known(group);
        let open = standing.epoch == epoch && !standing.paused && self.model.has_begun(group);
        let again = self.expect_again(group, attempt).filter(|_| open);
        let expected = again.unwrap_or_else(|| {
            if !open {
                return Vec::new();
            }
            self.model.skip(group, skip.0, skip.0 + skip.1);
            self.expect_new(group, at, now)
        });
        let handles: Vec<_> = got.iter().map(|one| names::handle_of(group, one)).collect();
        assert_eq!(handles, expected);
        self.check_units(&got);
        let id = self.model.last_checkout + 1;
        if handles.iter().any(|handle| handle.checkout.get() == id) {
            self.model.last_checkout = id;
            for (known, _, other, _) in self.model.checkouts.values_mut() {
                if *known == group && *other == attempt {
                    *other = None;
                }
            }
            self.model.checkouts.insert(id, (group, who, attempt, now + 1_000));
        }
        self.handles.extend(handles.iter().filter(|handle| handle.checkout.get() == id));
    }

    fn expect_again(&self, group: GroupId, attempt: Option<u8>) -> Option<Vec<Handle>> {
        let now = self.bench.stamp;
        let known = self.model.checkouts.iter().find(|(_, (of, _, found, until))| {
            *of == group && attempt.is_some() && *found == attempt && now < *until
        });
        let (id, _) = known?;
        let still = |handle: &Handle| handle.checkout.get() == *id;
        let mut handles = self.model.flying(group, still);
        handles.retain(|handle| {
            let offset = usize::try_from(handle.offset.get()).unwrap();
            matches!(self.model.groups[&group][offset], At::Flying { due, .. } if due.0 > now)
        });
        (!handles.is_empty()).then_some(handles)
    }

    fn expect_new(&mut self, group: GroupId, at: &[u64], now: u64) -> Vec<Handle> {
        let mut handles = Vec::new();
        for offset in at {
            // A grant that is not available must not move the model either.
            let known = self.model.groups.get(&group).map_or(0, Vec::len);
            let Some(attempt) = self.model.grant(group, *offset) else {
                if *offset >= self.model.end {
                    assert_eq!(self.model.groups.get(&group).map_or(0, Vec::len), known);
                }
                continue;
            };
            let handle = Handle {
                group,
                topic: names::TOPIC,
                queue: QueueId::new(0),
                offset: QueueOffset::new(*offset),
                checkout: crate::base::CheckoutId::new(self.model.last_checkout + 1),
                attempt,
            };
            let due = self.model.due(now + 1_000);
            *self.model.at(&handle).unwrap() = At::Flying { handle, due, held: false };
            handles.push(handle);
        }
        handles
    }

    fn check_units(&self, granted: &[Granted]) {
        for one in granted {
            assert_eq!(one.unit, self.bench.unit(0, one.offset.get()));
        }
    }

    fn ack(&mut self, pick: usize) {
        let Some(handle) = self.pick(pick) else { return };
        let outcome = self.bench.deliver(Delivery::Ack(Ack { handle }));
        let live = self.model.live(&handle);
        let barred = handle.checkout.get() <= self.model.known(handle.group).barred;
        let at = self.model.at(&handle);
        let done = live || at.as_deref() == Some(&At::Done) && !barred;
        if live {
            *at.unwrap() = At::Done;
        }
        let expected = if done { DeliveryOutcome::Done } else { DeliveryOutcome::Stale };
        assert_eq!(outcome, expected);
    }

    fn hold(&mut self, pick: usize, millis: u64) {
        let Some(handle) = self.pick(pick) else { return };
        let hold = Hold { handle, invisible: Millis::new(millis) };
        let outcome = self.bench.deliver(Delivery::Hold(hold));
        let due = (self.bench.stamp + millis, self.model.set + 1);
        let live = self.model.live(&handle);
        let at = self.model.at(&handle);
        let again = |last: &Handle| *last == handle && millis == 0;
        let repeated =
            matches!(at, Some(At::Ready { last, .. } | At::Dead { last, .. }) if again(last));
        if live && millis == 0 {
            self.model.fail(handle, false);
        } else if live {
            *at.unwrap() = At::Flying { handle, due, held: true };
            self.model.set += 1;
        }
        let done = live || repeated;
        let expected = if done { DeliveryOutcome::Done } else { DeliveryOutcome::Stale };
        assert_eq!(outcome, expected);
    }

    fn renew(&mut self, pick: usize, millis: u64) {
        let Some(handle) = self.pick(pick) else { return };
        let renew = Renew { checkouts: vec![handle.checkout], invisible: Millis::new(millis) };
        self.bench.deliver(Delivery::Renew(renew));
        let until = self.bench.stamp + millis;
        let same = |other: &Handle| other.checkout == handle.checkout;
        for renewed in self.model.flying(handle.group, same) {
            let next = (until, self.model.set + 1);
            if let Some(At::Flying { due, held: false, .. }) = self.model.at(&renewed)
                && due.0 < until
            {
                *due = next;
                self.model.set += 1;
            }
        }
    }

    fn release(&mut self, group: GroupId, who: u8, millis: u64) {
        let release = Release { group, consumer: consumer(who), invisible: Millis::new(millis) };
        self.bench.deliver(Delivery::Release(release));
        let until = self.bench.stamp + millis;
        let ids: Vec<_> = self
            .model
            .checkouts
            .iter()
            .filter(|(_, (of, by, ..))| *of == group && *by == who)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            for handle in self.model.flying(group, |handle| handle.checkout.get() == id) {
                let next = (until, self.model.set + 1);
                let at = self.model.at(&handle).unwrap();
                match at {
                    At::Flying { .. } if millis == 0 => self.model.fail(handle, false),
                    At::Flying { due, held, .. } => {
                        // Nobody extends it any more.
                        *held = true;
                        if due.0 > until {
                            *due = next;
                            self.model.set += 1;
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn give_back(&mut self, pick: usize, millis: u64) {
        let Some(handle) = self.pick(pick) else { return };
        let returned = Return { handles: vec![handle], invisible: Millis::new(millis) };
        self.bench.deliver(Delivery::Return(returned));
        if !self.model.live(&handle) {
            return;
        }
        let due = (self.bench.stamp + millis, self.model.set + 1);
        let attempt = handle.attempt - 1;
        // No handle has attempt 0 or names this one again: `last` can only be matched in vain.
        let last = Handle { attempt, ..handle };
        if millis == 0 {
            *self.model.at(&handle).unwrap() = At::Ready { attempt, last };
        } else {
            self.model.set += 1;
            *self.model.at(&handle).unwrap() = At::Waiting { attempt, due };
        }
    }

    fn give_up(&mut self, pick: usize) {
        let Some(handle) = self.pick(pick) else { return };
        let given = GiveUp { handle, otherwise: Millis::new(1_000) };
        let outcome = self.bench.deliver(Delivery::GiveUp(given));
        let live = self.model.live(&handle);
        let barred = handle.checkout.get() <= self.model.known(handle.group).barred;
        let over = matches!(self.model.at(&handle), Some(At::Dead { .. } | At::Done)) && !barred;
        if live {
            self.model.fail(handle, true);
        }
        let done = live || over;
        let expected = if done { DeliveryOutcome::Done } else { DeliveryOutcome::Stale };
        assert_eq!(outcome, expected);
    }

    fn redrive(&mut self, group: GroupId, letters: &[u64]) {
        let Some(topic) = self.bench.machine.state().dead_letters_topic(group) else { return };
        let mut expected = Vec::new();
        for letter in letters {
            let Some(last) = self.model.rows.remove(&(group, *letter)) else {
                expected.push(Redriven::NotFound);
                continue;
            };
            // One that a reset has brought back is with its group already.
            if let Some(at) = self.model.at(&last)
                && matches!(at, At::Dead { letter: of, .. } if of == letter)
            {
                *at = At::Ready { attempt: 0, last: Handle { attempt: 0, ..last } };
            }
            expected.push(Redriven::Done);
        }
        let letters = letters.iter().copied().map(QueueOffset::new).collect();
        let reply = self.bench.reply(Command::Redrive(Redrive { group, topic, letters }));
        assert_eq!(reply, Reply::Redriven(expected));
    }

    /// Every offset stands where the model has it, and every dead letter says where it came from.
    fn compare_standing(&self, group: GroupId) {
        let state = self.bench.machine.state();
        let queue = QueueId::new(0);
        for offset in 0..self.model.end {
            let offsets = self.model.groups.get(&group);
            let known = offsets.and_then(|all| all.get(usize::try_from(offset).unwrap()));
            let expected = match known {
                None | Some(At::Free) => Standing::NotHandedOut,
                Some(At::Flying { .. } | At::Waiting { .. }) => Standing::InFlight,
                Some(At::Ready { .. }) => Standing::Ready,
                Some(At::Dead { .. }) => Standing::Dead,
                Some(At::Done) => Standing::Done,
            };
            let found = state.standing((group, names::TOPIC), queue, QueueOffset::new(offset));
            assert_eq!(found, expected, "{group} {offset}");
        }
        let letters = state.dead_letters(group, None).map(|(at, letter)| {
            (at.get(), (letter.offset.get(), letter.attempts, letter.checkout))
        });
        let rows = self.model.rows.iter().filter(|((of, _), _)| *of == group);
        let rows = rows
            .map(|((_, letter), last)| (*letter, (last.offset.get(), last.attempt, last.checkout)));
        assert!(letters.eq(rows));
    }

    fn tick(&mut self, limit: u32) {
        let reply = self.bench.reply(Command::Tick { limit });
        let now = self.bench.stamp;
        let mut due: Vec<_> = Vec::new();
        for (group, offsets) in &self.model.groups {
            for (offset, at) in offsets.iter().enumerate() {
                if let At::Flying { due: at, .. } | At::Waiting { due: at, .. } = at
                    && at.0 <= now
                {
                    due.push((*at, *group, offset));
                }
            }
        }
        due.sort_unstable();
        due.truncate(limit as usize);
        for (_, group, offset) in &due {
            let at = &mut self.model.groups.get_mut(group).unwrap()[*offset];
            if let At::Flying { handle, .. } = *at {
                self.model.fail(handle, false);
                continue;
            }
            *at = match *at {
                At::Waiting { attempt, .. } => {
                    At::Ready { attempt, last: Handle { attempt: u32::MAX, ..self.handles[0] } }
                }
                other => panic!("only what is hidden has a deadline: {other:?}"),
            };
        }
        assert_eq!(reply, Reply::Ticked { fired: u32::try_from(due.len()).unwrap() });
    }

    /// The machine and the model agree on every offset of every group, and on every handle.
    fn compare(&mut self) {
        let mut hidden = 0;
        for group in GROUPS {
            let QueueView { next, free, ready, in_flight, pending } =
                self.bench.machine.state().view(group, names::TOPIC, QueueId::new(0));
            assert_eq!(pending, ready.len() + in_flight, "no view is cut short here");
            let free = free.iter().flat_map(|(from, to)| from.get()..to.get()).collect();
            let ready = ready.iter().map(|one| (one.offset.get(), one.attempt)).collect();
            assert_eq!((next.get(), free, ready, in_flight), self.model.view(group));
            hidden += in_flight;
            self.compare_standing(group);
        }
        assert_eq!(self.bench.machine.state().in_flight(), hidden);
        for handle in self.handles.clone() {
            let live = self.bench.machine.state().handle_state(&handle) == HandleState::Live;
            assert_eq!(live, self.model.live(&handle), "{handle:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_offset_is_in_one_place(steps in prop::collection::vec(step(), 1..160)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        run.restart(Some(0));
    }
}
