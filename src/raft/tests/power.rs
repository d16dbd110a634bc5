//! The power goes while a replica works: log, machine and checkpoints together, on the simulated
//! disk that loses what was not synced and tears the last write.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bytes::Bytes;

use crate::base::{
    ClientId, GroupId, GroupName, LogIndex, Millis, QueueId, QueueOffset, Term, TopicId, TopicName,
};
use crate::command::{
    Ack, Begin, Checkout, Command, CreateGroup, CreateTopic, Delivery, DeliveryOutcome, Grant,
    Handle, Hold, OrderRule, Publish, PublishItem, Renew, Reply, Take,
};
use crate::commit_log::{self, CommitLog, Flusher, Frame, FrameKind};
use crate::env::sim::{Sim, SimEntropy};
use crate::machine::{self, Entry, Machine, State};
use crate::message::{MessageIdHash, MessageKind};

const LOG: &str = "/replica/log";
const MACHINE: &str = "/replica/machine";
const QUEUES: u32 = 3;
/// Small, so that every run rolls segments and writes checkpoints.
const SEGMENT_BYTES: u64 = 64 << 10;

/// What was answered, and so must never be lost.
#[derive(Default)]
struct Promise {
    /// Entry bodies that were acknowledged.
    bodies: BTreeMap<LogIndex, Bytes>,
    /// The state's hash after the newest of them.
    state: Option<(LogIndex, u64)>,
}

struct Replica {
    log: CommitLog,
    flusher: Flusher,
    machine: Machine,
    term: Term,
}

/// Deliveries that the workload may acknowledge.
type Held = Vec<Handle>;

#[test]
fn five_hundred_power_cuts_lose_nothing_that_was_acknowledged() {
    let mut cuts = 0;
    let mut entries = 0;
    let mut from_checkpoint = 0;
    for seed in 0..25 {
        let sim = Sim::new(seed);
        let random = SimEntropy::new(seed ^ 0xc0ffee);
        let mut promise = Promise::default();
        for life in 0..20 {
            let replica = open(&sim, life + 1);
            from_checkpoint += u64::from(replica.machine.state().applied().is_some());
            let mut replica = recover(replica);
            check(&replica, &promise, seed, life);
            sim.disk.stop_after(20 + random.below(400));
            work(&sim, &random, &mut replica, &mut promise);
            drop(replica);
            sim.disk.power_cut(random.below(u64::MAX));
            cuts += 1;
        }
        let replica = recover(open(&sim, 100));
        check(&replica, &promise, seed, 100);
        entries += promise.bodies.len();
    }
    println!(
        "{cuts} power cuts, {entries} acknowledged entries intact, \
         {from_checkpoint} starts from a checkpoint"
    );
    assert_eq!(cuts, 500);
    assert!(entries > 5_000, "the workload must acknowledge something: {entries}");
    assert!(from_checkpoint > 50, "checkpoints must be used: {from_checkpoint}");
}

fn open(sim: &Sim, term: u64) -> Replica {
    let env = sim.env();
    for dir in ["/replica", LOG, MACHINE] {
        env.disk.create_dir_all(Path::new(dir)).unwrap();
    }
    let options = commit_log::Options { segment_bytes: SEGMENT_BYTES, ..Default::default() };
    let (log, flusher) = CommitLog::open(env.clone(), Path::new(LOG), options).unwrap();
    let options = machine::Options { checkpoint_bytes: 32 << 10, extents_per_file: 16 };
    let machine = Machine::open(&env, Path::new(MACHINE), options).unwrap();
    Replica { log, flusher, machine, term: Term::new(term) }
}

/// Applies what the log holds beyond the checkpoint; all of it is committed with one replica.
fn recover(mut replica: Replica) -> Replica {
    let bounds = replica.log.bounds();
    let Some((last, _)) = bounds.last else { return replica };
    if let Some((applied, _)) = replica.machine.state().applied() {
        assert!(applied <= last, "the checkpoint at {applied} is ahead of the log at {last}");
    }
    apply_to(&mut replica, last);
    replica
}

fn apply_to(replica: &mut Replica, last: LogIndex) -> Vec<Reply> {
    let mut replies = Vec::new();
    let next = replica.machine.state().applied().map_or(LogIndex::ZERO, |(index, _)| index.next());
    let mut at = next;
    while at <= last {
        for frame in replica.log.read(at, last.next(), 1 << 20).unwrap() {
            at = frame.index.next();
            replies.push(apply(&mut replica.machine, &frame));
        }
    }
    replies
}

fn apply(machine: &mut Machine, frame: &Frame) -> Reply {
    let entry = Entry {
        index: frame.index,
        term: frame.term,
        stamp: frame.seal.unwrap().stamp,
        position: frame.body_position(),
        end: frame.position.plus(frame.encoded_len() as u64),
        command: frame.body.clone(),
    };
    machine.apply(&entry).unwrap().reply
}

fn check(replica: &Replica, promise: &Promise, seed: u64, life: u64) {
    let at = format!("seed {seed}, life {life}");
    for (index, body) in &promise.bodies {
        let frames = replica.log.read(*index, index.next(), usize::MAX).unwrap();
        assert_eq!(frames.len(), 1, "{at}: acknowledged entry {index} is gone");
        assert_eq!(&frames[0].body, body, "{at}: acknowledged entry {index} is another");
    }
    // A replica that knows nothing but the log comes to the same state.
    let fresh = Sim::new(seed);
    fresh.env().disk.create_dir_all(Path::new(MACHINE)).unwrap();
    let mut replay = Machine::open(&fresh.env(), Path::new(MACHINE), machine::Options::default());
    let replay = replay.as_mut().unwrap();
    let Some((last, _)) = replica.log.bounds().last else { return };
    let mut next = LogIndex::ZERO;
    while next <= last {
        for frame in replica.log.read(next, last.next(), 1 << 20).unwrap() {
            next = frame.index.next();
            apply(replay, &frame);
            if let Some((index, hash)) = promise.state
                && index == frame.index
            {
                assert_eq!(replay.state().hash(), hash, "{at}: the state at {index} differs");
            }
        }
    }
    assert_eq!(replay.state().hash(), replica.machine.state().hash(), "{at}: state");
    let units = |machine: &Machine| machine.state().units_hash().unwrap();
    assert_eq!(units(replay), units(&replica.machine), "{at}: queue units");
}

/// Works until the power goes.
fn work(sim: &Sim, random: &SimEntropy, replica: &mut Replica, promise: &mut Promise) {
    let mut held = Held::new();
    loop {
        sim.clock.advance(Millis::new(random.below(2_000)));
        let mut frames = Vec::new();
        let first = replica.log.bounds().last.map_or(LogIndex::ZERO, |(last, _)| last.next());
        for step in 0..=random.below(4) {
            // `None` where the queue to look at was on the disk that is gone.
            let Some(command) = command(random, replica.machine.state(), &mut held) else { return };
            let command = command.encode();
            let index = first.plus(step);
            frames.push(Frame::unsealed(index, replica.term, FrameKind::Command, command));
        }
        let bodies: Vec<_> = frames.iter().map(|f| (f.index, f.body.clone())).collect();
        let (done, completed) = std::sync::mpsc::channel();
        let completion = Box::new(move |result: io::Result<()>| {
            done.send(result.is_ok()).unwrap();
        });
        if replica.log.append(frames, completion).is_err() {
            return;
        }
        while replica.flusher.step() {}
        if completed.recv() != Ok(true) {
            return;
        }
        let last = bodies.last().unwrap().0;
        // The disk may be gone for derived files while the log's sync still came through.
        let Ok(replies) = try_apply(replica, last) else { return };
        held.extend(replies.iter().flat_map(granted));
        promise.bodies.extend(bodies);
        promise.state = Some((last, replica.machine.state().hash()));
        if !upkeep(random, replica, last) {
            return;
        }
    }
}

fn try_apply(replica: &mut Replica, last: LogIndex) -> Result<Vec<Reply>, ()> {
    let next = replica.machine.state().applied().map_or(LogIndex::ZERO, |(index, _)| index.next());
    let frames = replica.log.read(next, last.next(), usize::MAX).map_err(drop)?;
    assert_eq!(frames.last().unwrap().index, last, "one read gives all of a small batch");
    let mut replies = Vec::new();
    for frame in frames {
        let entry = Entry {
            index: frame.index,
            term: frame.term,
            stamp: frame.seal.unwrap().stamp,
            position: frame.body_position(),
            end: frame.position.plus(frame.encoded_len() as u64),
            command: frame.body.clone(),
        };
        replies.push(replica.machine.apply(&entry).map_err(drop)?.reply);
    }
    Ok(replies)
}

/// Spares, checkpoints and the committed mark; false when the power went meanwhile.
fn upkeep(random: &SimEntropy, replica: &mut Replica, last: LogIndex) -> bool {
    let spares = replica.log.upkeep();
    let mut rounds = random.below(3);
    while rounds > 0 && spares.step() {
        rounds -= 1;
    }
    if random.below(3) == 0 && replica.log.save_committed(last, replica.term).is_err() {
        return false;
    }
    if replica.machine.checkpoint_due() || random.below(40) == 0 {
        let Some(checkpoint) = replica.machine.freeze() else { return true };
        assert!(replica.log.bounds().flushed >= Some(checkpoint.index()));
        return checkpoint.publish().is_ok();
    }
    true
}

fn granted(reply: &Reply) -> Vec<Handle> {
    let Reply::Deliveries(outcomes) = reply else { return Vec::new() };
    let mut handles = Vec::new();
    for outcome in outcomes {
        let DeliveryOutcome::CheckedOut(out) = outcome else { continue };
        handles.extend(out.granted.iter().map(|granted| Handle {
            group: GroupId::new(1),
            topic: TopicId::new(1),
            queue: granted.queue,
            offset: granted.offset,
            checkout: granted.checkout,
            attempt: granted.attempt,
        }));
    }
    handles
}

/// One step of a mixed workload, as a leader would propose it; `None` when a queue cannot be read.
fn command(random: &SimEntropy, state: &State, held: &mut Held) -> Option<Command> {
    let name = TopicName::new("orders").unwrap();
    let Some(topic) = state.topic(&name).map(|topic| topic.id) else {
        let kinds = vec![MessageKind::Normal];
        return Some(Command::CreateTopic(CreateTopic { name, queues: QUEUES, kinds, keep: None }));
    };
    let group = GroupName::new("readers").unwrap();
    let Some(group) = state.group(&group).map(|group| group.id) else {
        let backoff = vec![Millis::from_secs(1)];
        let (rule, begin) = (OrderRule::default(), Begin::default());
        let group = CreateGroup { name: group, attempts_max: 3, backoff, rule, begin };
        return Some(Command::CreateGroup(group));
    };
    Some(match random.below(16) {
        0..8 => publish(random, topic),
        8..11 => Command::Deliveries(vec![checkout(random, state, group, topic).ok()?]),
        11..14 => Command::Deliveries(settle(random, held)),
        14 => Command::Tick { limit: 1 + u32::try_from(random.below(20)).unwrap() },
        _ => Command::Audit,
    })
}

fn publish(random: &SimEntropy, topic: TopicId) -> Command {
    let queue = QueueId::new(u32::try_from(random.below(u64::from(QUEUES))).unwrap());
    let item = |_| {
        // Ids repeat now and then, so that dedup has something to remember.
        let id = random.below(400);
        let size = usize::try_from(50 + random.below(600)).unwrap();
        PublishItem {
            queue,
            kind: MessageKind::Normal,
            id_hash: MessageIdHash::of(&id.to_string()),
            body_crc: u32::try_from(id).unwrap(),
            tag_hash: 0,
            group_hash: 0,
            record: vec![b'x'; size].into(),
            record_at: 0,
        }
    };
    let items = (0..=random.below(3)).map(item).collect();
    Command::Publish(Publish { topic, dedup: true, items })
}

fn checkout(
    random: &SimEntropy,
    state: &State,
    group: GroupId,
    topic: TopicId,
) -> io::Result<Delivery> {
    let mut takes = Vec::new();
    for queue in (0..QUEUES).map(QueueId::new) {
        let view = state.view(group, topic, queue);
        let ready = view.ready.iter().take(3).map(|r| Grant { offset: r.offset, unit: r.unit });
        let mut grants: Vec<Grant> = ready.collect();
        let units = state.units(topic, queue, view.next, 3)?;
        let fresh = units.into_iter().enumerate().map(|(at, unit)| Grant {
            offset: QueueOffset::new(view.next.get() + at as u64),
            unit,
        });
        grants.extend(fresh);
        takes.push(Take { queue, skips: Vec::new(), grants });
    }
    Ok(Delivery::Checkout(Checkout {
        group,
        topic,
        consumer: ClientId::new("reader").unwrap(),
        attempt_id: Some(random.below(1000).to_string()),
        invisible: Millis::new(random.below(20_000)),
        auto_renew: random.below(2) == 0,
        subscription_version: 0,
        takes,
        epoch: 0,
    }))
}

fn settle(random: &SimEntropy, held: &mut Held) -> Vec<Delivery> {
    let mut steps = Vec::new();
    for _ in 0..=random.below(6) {
        if held.is_empty() {
            break;
        }
        let at = usize::try_from(random.below(held.len() as u64)).unwrap();
        let handle = held.swap_remove(at);
        steps.push(match random.below(4) {
            0 => {
                let invisible = Millis::new(random.below(5_000));
                Delivery::Hold(Hold { handle, invisible })
            }
            1 => Delivery::Renew(Renew {
                checkouts: vec![handle.checkout],
                invisible: Millis::from_secs(10),
            }),
            _ => Delivery::Ack(Ack { handle }),
        });
    }
    steps
}
