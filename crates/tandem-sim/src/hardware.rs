//! The hardware: which CPUs share a core, a last-level cache or a socket, how fast they are, and what operations cost.

use serde::Deserialize;

/// Physical CPUs. Number 0 is thread 0 of core 0 of socket 0; threads of a core have adjacent numbers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hardware {
    /// Sockets.
    pub sockets: usize,
    /// Last-level caches per socket.
    pub caches: usize,
    /// Cores per cache.
    pub cores: usize,
    /// Hardware threads per core.
    pub threads: usize,
    /// Speed of a hardware thread while its sibling is busy, relative to a whole core, 0 to 1.
    pub smt_speed: f64,
    /// Speed of each core, 0 to 1, by core number; missing entries are 1.
    pub core_speed: Vec<f64>,
}

impl Default for Hardware {
    fn default() -> Self {
        Self { sockets: 1, caches: 1, cores: 2, threads: 1, smt_speed: 0.62, core_speed: Vec::new() }
    }
}

/// How far apart two CPUs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// The same CPU.
    Same,
    /// Hardware threads of the same core.
    Core,
    /// Cores of the same last-level cache.
    Cache,
    /// Caches of the same socket.
    Socket,
    /// Different sockets.
    Machine,
}

impl Hardware {
    /// How many CPUs.
    pub fn cpus(&self) -> usize {
        self.sockets * self.caches * self.cores * self.threads
    }

    /// Number of the core of a CPU.
    pub fn core_of(&self, cpu: usize) -> usize {
        cpu / self.threads
    }

    /// Number of the last-level cache of a CPU.
    pub fn cache_of(&self, cpu: usize) -> usize {
        cpu / (self.threads * self.cores)
    }

    /// Number of the socket of a CPU.
    pub fn socket_of(&self, cpu: usize) -> usize {
        cpu / (self.threads * self.cores * self.caches)
    }

    /// How far apart two CPUs are.
    pub fn distance(&self, a: usize, b: usize) -> Distance {
        if a == b {
            Distance::Same
        } else if self.core_of(a) == self.core_of(b) {
            Distance::Core
        } else if self.cache_of(a) == self.cache_of(b) {
            Distance::Cache
        } else if self.socket_of(a) == self.socket_of(b) {
            Distance::Socket
        } else {
            Distance::Machine
        }
    }

    /// CPUs of the same core, itself included.
    pub fn siblings(&self, cpu: usize) -> std::ops::Range<usize> {
        let first = self.core_of(cpu) * self.threads;
        first..first + self.threads
    }

    /// Speed of a core, 0 to 1.
    pub fn speed(&self, cpu: usize) -> f64 {
        self.core_speed.get(self.core_of(cpu)).copied().unwrap_or(1.0)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// No CPU, too many, or a speed out of range.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=1024).contains(&self.cpus()) {
            return Err(format!("hardware: {} CPUs; 1 to 1024 are possible", self.cpus()));
        }
        let part = |x: &f64| *x > 0.0 && *x <= 1.0;
        if !part(&self.smt_speed) || !self.core_speed.iter().all(part) {
            return Err("hardware: smt_speed and core_speed lie above 0 and up to 1".into());
        }
        Ok(())
    }
}

/// Costs of operations, nanoseconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// A context switch (ghOSt: 0.6 us; Bendersky 2018: 1.2 to 1.5 us).
    pub switch_ns: u64,
    /// The tick's handler, without exits.
    pub tick_ns: u64,
    /// An exit and the entry after it (Skylake, external interrupt: 0.71 us).
    pub exit_ns: u64,
    /// Delivery of an IPI to a CPU that is awake.
    pub ipi_ns: u64,
    /// Delivery of a virtual IPI to a vCPU in guest mode (Skylake: 2.2 to 2.5 us).
    pub virtual_ipi_ns: u64,
    /// The handler of an interrupt other than the tick.
    pub irq_ns: u64,
    /// A wake-up, paid by the waker.
    pub wake_ns: u64,
    /// Exit from an idle state of a CPU (halt polling saves 5 to 7 us of it).
    pub idle_exit_ns: u64,
    /// A system call that blocks.
    pub block_ns: u64,
    /// Cache refill after a migration within a last-level cache, per KiB of working set.
    pub refill_near_ns_per_kib: f64,
    /// Cache refill after a migration to another last-level cache, per KiB of working set.
    pub refill_far_ns_per_kib: f64,
    /// Cache refill per KiB for each millisecond that other tasks ran on the CPU, up to the near cost.
    pub refill_ns_per_kib_ms: f64,
    /// Longest halt polling of the host for a halted vCPU (KVM's `halt_poll_ns`).
    pub halt_poll_ns: u64,
    /// BPF time per callback of a sched_ext policy.
    pub bpf_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            switch_ns: 1_000,
            tick_ns: 1_500,
            exit_ns: 1_200,
            ipi_ns: 800,
            virtual_ipi_ns: 2_300,
            irq_ns: 600,
            wake_ns: 1_000,
            idle_exit_ns: 5_000,
            block_ns: 700,
            refill_near_ns_per_kib: 40.0,
            refill_far_ns_per_kib: 122.0,
            refill_ns_per_kib_ms: 10.0,
            halt_poll_ns: 200_000,
            bpf_ns: 250,
        }
    }
}

impl Costs {
    /// Cache refill time of a task with a working set of `kib` after a migration over `distance`, ns.
    pub fn refill_ns(&self, kib: u32, distance: Distance) -> u64 {
        let per_kib = match distance {
            Distance::Same | Distance::Core => 0.0,
            Distance::Cache => self.refill_near_ns_per_kib,
            Distance::Socket | Distance::Machine => self.refill_far_ns_per_kib,
        };
        (per_kib * f64::from(kib)) as u64
    }

    /// The same after other tasks ran on its CPU for `others_ns`, ns.
    pub fn refill_after_others_ns(&self, kib: u32, others_ns: u64) -> u64 {
        let per_kib = (self.refill_ns_per_kib_ms * others_ns as f64 / 1e6).min(self.refill_near_ns_per_kib);
        (per_kib * f64::from(kib)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours() {
        let hardware = Hardware { sockets: 2, caches: 2, cores: 2, threads: 2, ..Hardware::default() };
        assert_eq!(hardware.cpus(), 16);
        for (a, b, distance) in [
            (3, 3, Distance::Same),
            (0, 1, Distance::Core),
            (0, 2, Distance::Cache),
            (0, 4, Distance::Socket),
            (0, 8, Distance::Machine),
        ] {
            assert_eq!(hardware.distance(a, b), distance);
            assert_eq!(hardware.distance(b, a), distance);
        }
        assert_eq!(hardware.siblings(5), 4..6);
        assert!(Hardware { cores: 0, ..hardware }.check().is_err());
    }

    #[test]
    fn cold_caches_cost_by_distance() {
        let costs = Costs::default();
        assert_eq!(costs.refill_ns(1000, Distance::Core), 0);
        assert!(costs.refill_ns(1000, Distance::Cache) < costs.refill_ns(1000, Distance::Machine));
        assert_eq!(costs.refill_after_others_ns(1000, 0), 0);
        assert_eq!(costs.refill_after_others_ns(1000, 1 << 40), costs.refill_ns(1000, Distance::Cache));
    }
}
