//! Hosts and true time. Each host has an executor and a clock of its own, which runs at the host's
//! rate, stops while the host is paused, and jumps when it goes on, as after SIGSTOP.
//!
//! turmoil, which does much of this, was left for three faults that it cannot make: a host that is
//! paused, a clock that runs faster, and a connection that survives a cut.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use raftmq::base::UtcMillis;
use raftmq::env::Clock;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::ambient;
use super::net::{HostId, Micros, Net};
use super::trace::Trace;

/// One step of true time. Nothing crosses the network faster, so that hosts may take their steps
/// one after the other.
pub(crate) const STEP: Micros = 2_000;
/// Where true wall time begins.
pub(crate) const STARTED: u64 = 1_700_000_000_000;

/// A clock as one host reads it.
#[derive(Debug, Default)]
pub(crate) struct HostClock {
    /// Microseconds since the simulation began, at the host's rate.
    local: AtomicU64,
    skew_millis: AtomicI64,
}

impl HostClock {
    pub(crate) fn set_skew(&self, millis: i64) {
        self.skew_millis.store(millis, Ordering::Relaxed);
    }
}

impl Clock for HostClock {
    fn wall(&self) -> UtcMillis {
        let local = STARTED + self.local.load(Ordering::Relaxed) / 1000;
        UtcMillis::new(local.saturating_add_signed(self.skew_millis.load(Ordering::Relaxed)))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.local.load(Ordering::Relaxed))
    }
}

struct Host {
    runtime: Option<Runtime>,
    clock: Arc<HostClock>,
    /// Parts per million that the clock is too fast.
    rate: i64,
    /// What of the host's time its executor has not seen yet.
    behind: Micros,
    paused: bool,
}

pub(crate) struct World {
    pub(crate) net: Net,
    trace: Trace,
    now: Micros,
    hosts: Vec<Host>,
}

impl World {
    pub(crate) fn new(hosts: usize, net: Net, trace: Trace) -> Self {
        let host =
            || Host { runtime: None, clock: Arc::default(), rate: 0, behind: 0, paused: false };
        Self { net, trace, now: 0, hosts: (0..hosts).map(|_| host()).collect() }
    }

    pub(crate) fn now(&self) -> Micros {
        self.now
    }

    pub(crate) fn clock(&self, host: HostId) -> Arc<HostClock> {
        self.hosts[host].clock.clone()
    }

    pub(crate) fn set_rate(&mut self, host: HostId, parts_per_million: i64) {
        self.hosts[host].rate = parts_per_million;
    }

    pub(crate) fn pause(&mut self, host: HostId, paused: bool) {
        self.hosts[host].paused = paused;
    }

    /// Starts a program on a host that has none.
    pub(crate) fn start<T: Send + 'static>(
        &mut self,
        id: HostId,
        program: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let host = &mut self.hosts[id];
        assert!(host.runtime.is_none(), "host {id} runs a program already");
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("an executor without a driver needs nothing");
        self.net.start(id);
        host.behind = 0;
        host.paused = false;
        let task = runtime.spawn(program);
        host.runtime = Some(runtime);
        task
    }

    /// Ends a host's program at once. The caller has told disk and network how.
    pub(crate) fn end(&mut self, id: HostId) {
        let host = &mut self.hosts[id];
        host.paused = false;
        drop(host.runtime.take());
    }

    /// Lets one step of true time pass.
    pub(crate) fn step(&mut self) {
        self.now += STEP;
        ambient::set_time(self.now * 1000);
        self.trace.set_time(self.now);
        self.net.deliver(self.now);
        for host in &mut self.hosts {
            host.step();
        }
    }
}

impl Host {
    fn step(&mut self) {
        let passed = STEP.saturating_add_signed(STEP.cast_signed() * self.rate / 1_000_000);
        self.behind += passed;
        let Some(runtime) = self.runtime.as_ref().filter(|_| !self.paused) else {
            self.clock.local.fetch_add(passed, Ordering::Relaxed);
            return;
        };
        // The executor's clock has milliseconds.
        let millis = self.behind / 1000;
        self.behind %= 1000;
        if millis > STEP.div_ceil(1000) * 2 {
            // It was paused: all at once it is late.
            runtime.block_on(async { tokio::time::advance(Duration::from_millis(millis)).await });
        } else if millis > 0 {
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(millis)).await });
        }
        self.clock.local.fetch_add(passed, Ordering::Relaxed);
    }
}
