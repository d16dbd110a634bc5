//! The simulated network: connections between hosts, and letters between clients and nodes.
//!
//! A connection is what TCP gives: bytes in order, or a reset. Loss is therefore a delay, a cut
//! link holds bytes back until it heals, a process that is killed closes its connections, and a
//! machine without power leaves them dangling until it is up again and resets them.

mod stream;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use raftmq::raft::{Dial, Stream};

use super::random::Random;
use super::trace::Trace;

pub(crate) use stream::End;

/// Microseconds of true time.
pub(crate) type Micros = u64;
/// A host's place in the world.
pub(crate) type HostId = usize;

/// A lost segment is sent again after this.
const RETRANSMIT: Micros = 200_000;
/// How long after a link healed the bytes held back by it come, at most.
const HEALED: u64 = 200_000;

/// Cheap to clone; all clones are one network.
#[derive(Clone)]
pub(crate) struct Net(Arc<Mutex<Inner>>);

struct Inner {
    now: Micros,
    random: Random,
    trace: Trace,
    hosts: Vec<Host>,
    /// From, then to.
    links: Vec<Vec<Link>>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    letters: u64,
    /// Connections that have just come in: where, and which.
    incoming: Vec<(HostId, u64)>,
    counts: Counts,
}

/// What the network did to its users.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) segments: u64,
    pub(crate) lost: u64,
    pub(crate) held: u64,
    pub(crate) resets: u64,
}

/// One direction between two hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) cut: bool,
    pub(crate) least: Micros,
    pub(crate) most: Micros,
    /// Of a thousand segments.
    pub(crate) loss: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    Off,
    /// The machine runs, the program does not.
    Idle,
    On,
}

struct Host {
    power: Power,
    /// Counts the program's lives.
    life: u64,
    backlog: VecDeque<End>,
    accepting: Option<Waker>,
    mail: VecDeque<Letter>,
    reading: Option<Waker>,
    on_the_way: Vec<(Micros, u64, Letter)>,
}

/// What a client and a node say to each other.
pub(crate) struct Letter {
    pub(crate) from: HostId,
    pub(crate) id: u64,
    pub(crate) content: Content,
}

pub(crate) enum Content {
    Asked(Box<dyn Any + Send>),
    Answered(Box<dyn Any + Send>),
    /// There is no program that could have read it.
    Refused,
}

struct Connection {
    ends: [HostId; 2],
    closed: [bool; 2],
    /// `flows[0]` goes from `ends[0]` to `ends[1]`.
    flows: [Flow; 2],
    established: bool,
    connecting: Option<Waker>,
}

#[derive(Default)]
struct Flow {
    on_the_way: VecDeque<(Micros, Segment)>,
    last_due: Micros,
    size: usize,
    ready: VecDeque<bytes::Bytes>,
    ended: bool,
    reset: bool,
    held: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

enum Segment {
    Open,
    Opened,
    Data(bytes::Bytes),
    Fin,
    Reset,
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl Net {
    pub(crate) fn new(hosts: usize, link: Link, random: Random, trace: Trace) -> Self {
        let host = || Host {
            power: Power::Off,
            life: 0,
            backlog: VecDeque::new(),
            accepting: None,
            mail: VecDeque::new(),
            reading: None,
            on_the_way: Vec::new(),
        };
        Self(Arc::new(Mutex::new(Inner {
            now: 0,
            random,
            trace,
            hosts: (0..hosts).map(|_| host()).collect(),
            links: vec![vec![link; hosts]; hosts],
            connections: BTreeMap::new(),
            next: 0,
            letters: 0,
            incoming: Vec::new(),
            counts: Counts::default(),
        })))
    }

    pub(crate) fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    pub(crate) fn set_link(&self, from: HostId, to: HostId, change: impl FnOnce(&mut Link)) {
        change(&mut self.0.lock().links[from][to]);
    }

    /// The program on a host runs.
    pub(crate) fn start(&self, host: HostId) {
        let host = &mut self.0.lock().hosts[host];
        host.power = Power::On;
        host.life += 1;
    }

    /// The program is about to be killed: its connections are closed by the system.
    pub(crate) fn kill(&self, host: HostId) {
        let left = self.0.lock().stop(host, Power::Idle);
        drop(left);
    }

    /// The machine is about to lose power: nobody closes anything.
    pub(crate) fn power_off(&self, host: HostId) {
        let mut inner = self.0.lock();
        for connection in inner.connections.values_mut() {
            for side in 0..2 {
                if connection.ends[side] == host {
                    connection.closed[side] = true;
                }
            }
        }
        let left = inner.stop(host, Power::Off);
        drop(inner);
        drop(left);
    }

    /// Time goes on, and what has arrived is there.
    pub(crate) fn deliver(&self, now: Micros) {
        let inner = &mut *self.0.lock();
        inner.now = now;
        inner.deliver_segments();
        inner.deliver_letters();
        for (host, id) in std::mem::take(&mut inner.incoming) {
            let host = &mut inner.hosts[host];
            host.backlog.push_back(End::new(self.clone(), id, 1));
            wake(&mut host.accepting);
        }
    }

    /// Sends a letter to another host, which gets it unless it has no power.
    pub(crate) fn post(&self, from: HostId, to: HostId, id: u64, content: Content) {
        let inner = &mut *self.0.lock();
        let due = inner.due(from, to, 0);
        let number = inner.letters;
        inner.letters += 1;
        inner.hosts[to].on_the_way.push((due, number, Letter { from, id, content }));
    }

    /// The next letter for the program on this host.
    pub(crate) fn poll_mail(&self, host: HostId, context: &Context<'_>) -> Poll<Letter> {
        let host = &mut self.0.lock().hosts[host];
        match host.mail.pop_front() {
            Some(letter) => Poll::Ready(letter),
            None => {
                host.reading = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The next connection that came in.
    pub(crate) fn poll_accept(&self, host: HostId, context: &Context<'_>) -> Poll<End> {
        let host = &mut self.0.lock().hosts[host];
        match host.backlog.pop_front() {
            Some(end) => Poll::Ready(end),
            None => {
                host.accepting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn connect(&self, from: HostId, to: HostId) -> End {
        let inner = &mut *self.0.lock();
        let id = inner.next;
        inner.next += 1;
        let due = inner.due(from, to, 0);
        let mut flows = [Flow::default(), Flow::default()];
        flows[0].on_the_way.push_back((due, Segment::Open));
        flows[0].last_due = due;
        inner.connections.insert(
            id,
            Connection {
                ends: [from, to],
                closed: [false, true],
                flows,
                established: false,
                connecting: None,
            },
        );
        End::new(self.clone(), id, 0)
    }
}

/// A node's way to its peers.
pub(crate) struct Dialer {
    pub(crate) net: Net,
    pub(crate) from: HostId,
}

impl Dial for Dialer {
    /// Addresses are `nID:port`, and node `ID` is on the host of that number less one.
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let (net, from) = (self.net.clone(), self.from);
        let name = address.split(':').next().and_then(|name| name.strip_prefix('n'));
        let to = name.and_then(|id| id.parse::<usize>().ok()).and_then(|id| id.checked_sub(1));
        Box::pin(async move {
            let to = to.ok_or_else(|| io::Error::other(format!("{address:?} is no host")))?;
            let mut end = net.connect(from, to);
            end.connected().await?;
            Ok(Box::new(end) as Box<dyn Stream>)
        })
    }
}

impl Inner {
    /// What is left is dropped by the caller, without the lock.
    fn stop(&mut self, host: HostId, power: Power) -> (VecDeque<End>, VecDeque<Letter>) {
        let host = &mut self.hosts[host];
        host.power = power;
        host.accepting = None;
        host.reading = None;
        (std::mem::take(&mut host.backlog), std::mem::take(&mut host.mail))
    }

    fn deliver_letters(&mut self) {
        for to in 0..self.hosts.len() {
            if self.hosts[to].power == Power::Off {
                continue;
            }
            let waiting = std::mem::take(&mut self.hosts[to].on_the_way);
            let arrives = |(due, _, letter): &(Micros, u64, Letter)| {
                *due <= self.now && !self.links[letter.from][to].cut
            };
            let (mut here, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(arrives);
            self.hosts[to].on_the_way = later;
            here.sort_by_key(|(due, number, _)| (*due, *number));
            for (_, _, letter) in here {
                self.hand_over(to, letter);
            }
        }
    }

    fn hand_over(&mut self, to: HostId, letter: Letter) {
        let kind = match &letter.content {
            Content::Asked(_) => "asked",
            Content::Answered(_) => "answered",
            Content::Refused => "refused",
        };
        let Letter { from, id, .. } = letter;
        self.trace.note(format_args!("mail {id} {from}>{to} {kind}"));
        if self.hosts[to].power == Power::On {
            let host = &mut self.hosts[to];
            host.mail.push_back(letter);
            wake(&mut host.reading);
        } else if matches!(letter.content, Content::Asked(_)) {
            let due = self.due(to, from, 0);
            let number = self.letters;
            self.letters += 1;
            let refused = Letter { from: to, id, content: Content::Refused };
            self.hosts[from].on_the_way.push((due, number, refused));
        }
    }

    /// When something sent now arrives: behind `after`, which was sent before it.
    fn due(&mut self, from: HostId, to: HostId, after: Micros) -> Micros {
        let link = self.links[from][to];
        let mut due = self.now + self.random.between(link.least, link.most + 1);
        while link.loss > 0 && self.random.between(0, 1000) < link.loss {
            self.counts.lost += 1;
            due += RETRANSMIT;
        }
        due.max(after)
    }

    fn send(&mut self, id: u64, side: usize, segment: Segment) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (from, to) = (connection.ends[side], connection.ends[1 - side]);
        let due = self.due(from, to, connection.flows[side].last_due);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let flow = &mut connection.flows[side];
        flow.last_due = due;
        if let Segment::Data(bytes) = &segment {
            flow.size += bytes.len();
        }
        flow.on_the_way.push_back((due, segment));
    }

    fn deliver_segments(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            for side in 0..2 {
                while self.deliver_next(id, side) {}
            }
            let over = |connection: &Connection| {
                let quiet = connection.flows.iter().all(|flow| flow.on_the_way.is_empty());
                connection.established && connection.closed == [true, true] && quiet
            };
            if self.connections.get(&id).is_some_and(over) {
                self.connections.remove(&id);
            }
        }
    }

    /// Delivers the next segment from `side`, if one is due and the link is open.
    fn deliver_next(&mut self, id: u64, side: usize) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let (from, to) = (connection.ends[side], connection.ends[1 - side]);
        let flow = &mut connection.flows[side];
        let Some((due, _)) = flow.on_the_way.front() else { return false };
        if *due > self.now || self.hosts[to].power == Power::Off {
            return false;
        }
        if self.links[from][to].cut {
            if !flow.held {
                flow.held = true;
                self.counts.held += 1;
            }
            return false;
        }
        if std::mem::take(&mut flow.held) {
            // Retransmission has backed off meanwhile.
            let late = self.now + self.random.between(0, HEALED);
            flow.on_the_way[0].0 = late;
            flow.last_due = flow.last_due.max(late);
            return false;
        }
        let Some((_, segment)) = flow.on_the_way.pop_front() else { return false };
        self.counts.segments += 1;
        self.arrive(id, side, segment);
        true
    }

    fn arrive(&mut self, id: u64, side: usize, segment: Segment) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (from, to) = (connection.ends[side], connection.ends[1 - side]);
        let there = 1 - side;
        let closed = connection.closed[there];
        let flow = &mut connection.flows[side];
        match segment {
            Segment::Open => {
                let listens = self.hosts[to].power == Power::On;
                self.trace.note(format_args!("net {id} {from}>{to} open {listens}"));
                if !listens {
                    self.send(id, there, Segment::Reset);
                    return;
                }
                connection.closed[there] = false;
                self.send(id, there, Segment::Opened);
                self.incoming.push((to, id));
            }
            Segment::Opened => {
                connection.established = true;
                wake(&mut connection.connecting);
            }
            Segment::Data(bytes) => {
                let sum = crc32c::crc32c(&bytes);
                self.trace.note(format_args!("net {id} {from}>{to} {} {sum:08x}", bytes.len()));
                if closed {
                    flow.size -= bytes.len();
                    self.send(id, there, Segment::Reset);
                    return;
                }
                flow.ready.push_back(bytes);
                wake(&mut flow.reader);
            }
            Segment::Fin => {
                flow.ended = true;
                wake(&mut flow.reader);
            }
            Segment::Reset => {
                self.trace.note(format_args!("net {id} {from}>{to} reset"));
                self.counts.resets += 1;
                connection.established = true;
                connection.closed[side] = true;
                for flow in &mut connection.flows {
                    flow.reset = true;
                    wake(&mut flow.reader);
                    wake(&mut flow.writer);
                }
                wake(&mut connection.connecting);
            }
        }
    }
}
