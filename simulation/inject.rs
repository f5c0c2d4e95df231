//! How random faults are injected, and how all faults end.

use super::clock::{MILLI, Nanos, SECOND, nanos};
use super::faults::{Fault, TABLE};
use super::kernel::Phase;
use super::world::{Event, World};
use crate::node::admin::message::{Action, AdminRequest};
use crate::node::io::Input;

impl World {
    /// Starts the faults.
    pub(crate) fn begin_chaos(&mut self) {
        for row in &TABLE {
            self.schedule_fault(row.fault);
        }
        self.begin_client_chaos();
        if self.operator.is_some() {
            self.schedule_in(SECOND, Event::Roll);
        }
        if self.episodes.is_some() {
            self.schedule_in(SECOND, Event::Episode);
        }
        self.begin_damages();
    }

    fn schedule_fault(&mut self, fault: Fault) {
        if let Some(period) = self.kernel.plan.rates.period(fault) {
            let time = self.random.around(period);
            self.schedule_in(time, Event::Fault { fault });
        }
    }

    pub(crate) fn handle_fault(&mut self, fault: Fault) {
        if self.kernel.phase.get() != Phase::Chaos {
            return;
        }
        self.schedule_fault(fault);
        if let Some(what) = self.inject(fault) {
            self.kernel.count_fault(fault);
            self.kernel.trace.note([9, fault as u64, 0]);
            self.kernel.trace.log_fault(format_args!("{}: {what}", TABLE[fault as usize].name));
        }
    }

    /// Often the place of an instance that considers itself the leader, otherwise none.
    fn leader_often(&self) -> Option<usize> {
        self.leader().filter(|_| self.random.percent(40))
    }

    /// A place whose process runs.
    fn some_running(&self) -> Option<usize> {
        if let Some(leader) = self.leader_often() {
            return Some(leader);
        }
        let places = 0..self.processes.len();
        let running: Vec<usize> =
            places.filter(|place| self.processes[*place].life.is_some()).collect();
        (!running.is_empty()).then(|| *self.random.pick(&running))
    }

    /// Some of the places. Half of the time it is one.
    fn some_places(&self) -> Vec<usize> {
        if let Some(leader) = self.leader_often() {
            return vec![leader];
        }
        let count = self.processes.len();
        let most = if self.random.percent(60) { 1 } else { count };
        let mut places: Vec<usize> = (0..count).collect();
        while places.len() > most.min(1 + self.random.index(count)) {
            places.remove(self.random.index(places.len()));
        }
        places
    }

    /// A short time, a long one, or one that exceeds the session timeout.
    pub(super) fn some_time(&self) -> Nanos {
        let timeout = nanos(self.kernel.plan.session_timeout);
        let mean = *self.random.pick(&[100 * MILLI, SECOND, timeout / 2, timeout, 2 * timeout]);
        self.random.around(mean)
    }

    /// Injects a fault and describes it. Returns `None` if no instance could have it.
    fn inject(&mut self, fault: Fault) -> Option<String> {
        let now = self.now();
        let time = self.some_time();
        match fault {
            Fault::PartitionOneWay | Fault::PartitionTwoWay => {
                Some(self.part(fault == Fault::PartitionTwoWay, time))
            }
            Fault::SlowNode => {
                let place = self.some_running()?;
                self.processes[place].slow_until = now + time;
                self.troubled_until = self.troubled_until.max(now + time);
                Some(format!("node {place} for {time} ns"))
            }
            Fault::Crash => {
                let places = self.some_places();
                for place in &places {
                    self.crash(*place);
                    let time = self.some_time();
                    self.start_in(*place, time);
                }
                Some(format!("nodes {places:?}"))
            }
            Fault::Close if self.random.percent(10) => {
                for place in 0..self.processes.len() {
                    let delay = self.random.below(100 * MILLI);
                    self.schedule_in(delay, Event::Close { place });
                }
                Some("all nodes".to_owned())
            }
            Fault::Close => {
                let place = self.some_running()?;
                self.close(place);
                Some(format!("node {place}"))
            }
            Fault::Pause => {
                let place = self.some_running()?;
                self.pause(place, time);
                Some(format!("node {place} for {time} ns"))
            }
            Fault::ClockDrift => {
                let place = self.random.index(self.processes.len());
                let rate = self.draw_rate();
                self.processes[place].clock.set_rate(rate);
                // Its deadline is at another true time now.
                self.want_step(place, now);
                Some(format!("node {place} to {rate} ppm"))
            }
            Fault::WallJump => {
                let place = self.random.index(self.processes.len());
                let by = self.random.below(7_200_000) as i64 - 3_600_000;
                self.processes[place].clock.jump_wall_clock(by);
                Some(format!("node {place} by {by} ms"))
            }
            Fault::SlowDisk => {
                let place = self.random.index(self.processes.len());
                self.processes[place].slow_disk_until = now + time;
                self.processes[place].excuse(now + time);
                self.troubled_until = self.troubled_until.max(now + time);
                Some(format!("node {place} for {time} ns"))
            }
            Fault::FullDisk => {
                let place = self.random.index(self.processes.len());
                let process = &mut self.processes[place];
                process.device.set_capacity(Some(1));
                process.is_full = true;
                process.excuse(now + time);
                self.schedule_in(time, Event::MakeRoom { place });
                Some(format!("node {place} for {time} ns"))
            }
            Fault::NoDescriptors => {
                let place = self.random.index(self.processes.len());
                self.processes[place].device.set_descriptors(Some(0));
                self.schedule_in(time, Event::MakeRoom { place });
                Some(format!("node {place} for {time} ns"))
            }
            Fault::CacheDropped => {
                let place = self.random.index(self.processes.len());
                let device = &self.processes[place].device;
                device.write_back_some();
                device.drop_caches();
                Some(format!("node {place}"))
            }
            Fault::SpareDamaged => {
                let place = self.some_running()?;
                self.spoil_spare(place)
            }
            Fault::BitRot | Fault::LostWrites | Fault::BadSector | Fault::Wipe => {
                self.lose_place(fault)
            }
            Fault::Join => self.join(),
            Fault::Leave => {
                let place = self.some_running()?;
                if self.random.percent(40) {
                    self.leave_while_another_is_down(place)
                } else {
                    self.leave(place)
                }
            }
            Fault::Move => {
                let place = self.random.index(self.processes.len());
                self.relocate(place)
            }
            Fault::Resign if self.random.percent(50) => self.operate(),
            Fault::Resign => {
                let place = self.some_running()?;
                self.input(place, Input::Resign);
                Some(format!("node {place}"))
            }
            Fault::Expire => {
                let pick = |count| self.random.index(count);
                let session = self.kernel.checks.borrow().sessions.any(pick)?;
                self.kernel.checks.borrow_mut().sessions.force(session);
                for place in 0..self.processes.len() {
                    self.input(place, Input::Expire { session });
                }
                Some(format!("session {session}"))
            }
            // These faults affect messages, syncs, steps and starts.
            Fault::Loss
            | Fault::Duplicate
            | Fault::DelaySpike
            | Fault::Reorder
            | Fault::CrashInStep
            | Fault::TornWrite
            | Fault::FailedSync
            | Fault::ReadError => None,
        }
    }

    /// An operator makes a request at any instance, and may not wait for the reply.
    fn operate(&mut self) -> Option<String> {
        let place = self.random.index(self.processes.len() + self.client_places().len());
        let coordinator = self.kernel.coordinators.borrow()[place].clone()?;
        let node = self.processes[self.random.index(self.processes.len())].member.node;
        let act = |action| AdminRequest::Act { action, by: "an operator".to_owned(), after: None };
        let (transfer, piece) = (self.random.below(3), self.random.below(3) as u32);
        let asked = match self.random.index(7) {
            0 | 1 => act(Action::MoveLeader { to: node }),
            2 | 3 => act(Action::Remove { member: node }),
            4 => AdminRequest::Report,
            5 => AdminRequest::Sessions { after: None },
            _ => AdminRequest::Image { of: 0, transfer, piece },
        };
        let what = format!("at node {place}: {asked:?}");
        drop(coordinator.shared().ask_members(asked));
        let now = self.now();
        match self.kernel.plan.is_client(place) {
            true => self.want_client_step(place, now),
            false => self.want_step(place, now),
        }
        Some(what)
    }

    pub(super) fn input(&mut self, place: usize, input: Input) {
        if let Some(life) = &mut self.processes[place].life {
            life.host.input(input);
            let now = self.now();
            self.want_step(place, now);
        }
    }

    fn part(&mut self, both_ways: bool, time: Nanos) -> String {
        let apart = self.some_places();
        let mut links = Vec::new();
        for from in apart.iter().copied() {
            for to in (0..self.processes.len()).filter(|to| !apart.contains(to)) {
                links.push((from, to));
                if both_ways {
                    links.push((to, from));
                }
            }
        }
        for (from, to) in &links {
            if self.network.cut(*from, *to) && self.random.percent(50) {
                self.schedule_notice(*from, *to, SECOND);
            }
        }
        self.troubled_until = self.troubled_until.max(self.now() + time);
        self.schedule_in(time, Event::Heal { links });
        format!("nodes {apart:?} for {time} ns")
    }

    fn pause(&mut self, place: usize, time: Nanos) {
        let until = self.now() + time;
        self.processes[place].paused_until = until;
        self.troubled_until = self.troubled_until.max(until);
        if let Some(life) = &mut self.processes[place].life {
            // The step that was due comes after the pause.
            life.step_at = Nanos::MAX;
        }
        self.want_step(place, until);
    }

    /// Ends all faults and repairs everything that can be repaired.
    pub(crate) fn end_chaos(&mut self) {
        self.kernel.phase.set(Phase::Recovery);
        self.kernel.trace.log_fault(format_args!("the faults end"));
        // Only the instance that was cut off notices. Nobody else sends anything again.
        for (from, to) in self.network.heal_all() {
            self.schedule_notice(from, to, SECOND);
        }
        self.repair();
        let now = self.now();
        for place in 0..self.processes.len() {
            let process = &mut self.processes[place];
            (process.paused_until, process.slow_until) = (now, now);
            process.slow_disk_until = now;
            process.device.disarm();
            process.has_room();
            if self.processes[place].life.is_none() {
                // A process that waits for its start gets a second start, which finds it running.
                self.schedule_in(SECOND, Event::Start { place });
            }
            self.want_step(place, now);
        }
        self.end_client_chaos();
    }
}
