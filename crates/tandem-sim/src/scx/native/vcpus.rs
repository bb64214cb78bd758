//! What a guest's daemon tells the guest scheduler of vCPUs, and reads of them.

use super::{function, Policy};
use crate::queue::Ns;

impl Policy {
    /// Takes a vCPU out of use, or gives it back; `limit`: in the name of the vCPU limit, otherwise in the operator's. Returns
    /// whether that was possible; a scheduler without vCPUs does nothing.
    pub fn park(&mut self, here: usize, cpu: usize, take: bool, limit: bool) -> bool {
        // SAFETY: the type is that in native/guest.c.
        match unsafe { function::<extern "C" fn(u32, bool, bool) -> u32>(&self.image, "sim_park") } {
            Ok(park) => self.with(here, |_| park(cpu as u32, take, limit)) == 0,
            Err(_) => false,
        }
    }

    /// For how long a vCPU had work, steal included, and for how long it was preempted meanwhile, ns.
    pub fn wanted_and_stolen_ns(&mut self, cpu: usize) -> (Ns, Ns) {
        let [wanted, stolen] = ["sim_wanted_ns", "sim_stolen_ns"].map(|name| {
            // SAFETY: the type is that in native/guest.c.
            let read = unsafe { function::<extern "C" fn(u32) -> u64>(&self.image, name) };
            read.map_or(0, |read| self.with(cpu, |_| read(cpu as u32)))
        });
        (wanted, stolen)
    }

    /// Does the number of banned vCPUs that the scheduler believes in match their bans?
    pub fn bans_are_counted(&mut self) -> Result<(), String> {
        // SAFETY: the type is that in native/guest.c.
        let bans = unsafe { function::<extern "C" fn(u32) -> u64>(&self.image, "sim_bans") }?;
        let all: Vec<u64> =
            (0..self.kernel().cpus.len()).map(|cpu| self.with(0, |_| bans(cpu as u32))).collect();
        let banned = all.iter().filter(|bans| *bans & 0xffff_ffff != 0).count() as u64;
        match all.first().map_or(0, |bans| bans >> 32) {
            believed if believed == banned => Ok(()),
            believed => Err(format!("{banned} vCPUs are banned, and {believed} are counted")),
        }
    }
}
