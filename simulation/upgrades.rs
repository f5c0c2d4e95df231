//! Members of several versions: they are upgraded, go back to an older build, or are too old.

use super::checks::versions;
use super::kernel::{Kernel, Phase};
use super::process::Process;
use super::random::Random;
use super::world::World;
use crate::types::version::{INVENTED, VERSION};

impl World {
    /// Draws whether the next start is an upgrade or goes back to an older build.
    pub(super) fn draw_version(kernel: &Kernel, versions: &Random, process: &mut Process) -> u16 {
        if kernel.plan.mixed && process.epoch > 1 {
            if process.version < INVENTED {
                if versions.percent(50) {
                    kernel.count_event("upgrades");
                    process.version = INVENTED;
                }
            } else if kernel.phase.get() == Phase::Chaos && versions.percent(10) {
                kernel.count_event("taken back");
                (process.version, process.lowered_at) = (VERSION, Some(kernel.now()));
            }
        }
        process.version
    }

    /// The node is too old for its cluster and has stopped. It is upgraded.
    pub(super) fn too_old(&mut self, place: usize) {
        self.kernel.count_event("too old");
        let process = &mut self.processes[place];
        let checked = versions::too_old(process, &self.kernel.checks.borrow().membership);
        process.version = INVENTED;
        self.kernel.check(checked);
    }

    /// Whether the cluster has the highest version that all its members support.
    pub(crate) fn has_its_version(&self) -> bool {
        let lowest = self.processes.iter().map(|process| process.version).min();
        let acts_by = self.kernel.checks.borrow().oracle.version();
        lowest.is_none_or(|lowest| lowest <= acts_by)
    }
}
