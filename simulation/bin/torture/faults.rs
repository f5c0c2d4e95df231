//! The faults: which happens next, and what ends it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::disk::NoSpace;
use crate::proxy::Cut;
use crate::{NODES, Outcome, Random, Torture};

/// How many kinds of faults are of the processes and the network, and how many there are with those of disks.
const WITHOUT_DISKS: u64 = 9;
const WITH_DISKS: u64 = 18;

/// What ends a fault, or is a second one.
pub(crate) enum Undo {
    Start(usize),
    Continue(usize),
    Heal(Cut),
    MakeRoom,
    RepairDisk(usize),
    /// The power of these is cut.
    CutPower(BTreeSet<usize>),
}

impl Torture {
    pub(crate) fn undo(&mut self, undo: Undo) -> Outcome<()> {
        match undo {
            Undo::Start(place) => self.processes[place].start()?,
            Undo::Continue(place) => drop(self.processes[place].signal("CONT")?),
            Undo::Heal(cut) => self.proxy.heal(&cut),
            Undo::MakeRoom => {
                if let Some(quota) = &self.quota {
                    quota.empty()?;
                }
            }
            Undo::RepairDisk(place) => {
                if let Some(disk) = &self.processes[place].disk {
                    disk.repair()?;
                }
            }
            Undo::CutPower(victims) => self.cut_power(&victims)?,
        }
        Ok(())
    }

    fn schedule_undo(&mut self, time: Duration, undo: Undo) {
        self.undo.push((Instant::now() + time, undo));
    }

    pub(crate) fn inject_fault(&mut self) -> Outcome<()> {
        let has_disks = self.processes[0].disk.is_some();
        let kinds = if has_disks { WITH_DISKS } else { WITHOUT_DISKS };
        let place = self.random.place();
        let time = self.random.milliseconds(100, 6_000);
        let kind = self.random.below(kinds);
        let fault = match kind {
            0..2 => self.kill_some(place, time)?,
            2..4 => {
                if !self.processes[place].signal("STOP")? {
                    return Ok(());
                }
                self.schedule_undo(time, Undo::Continue(place));
                "paused"
            }
            4..8 => self.cut_network(place, time),
            8 => {
                let Some(quota) = &self.quota else { return Ok(()) };
                quota.fill()?;
                self.schedule_undo(time, Undo::MakeRoom);
                "disk full"
            }
            _ if self.lasting && place == 0 => return Ok(()),
            _ => self.disk_fault(kind - WITHOUT_DISKS, place, time)?,
        };
        self.faults.push(fault);
        Ok(())
    }

    /// One instance, or all of them one time in so many.
    fn victims(&mut self, place: usize, all_in: u64) -> (BTreeSet<usize>, bool) {
        let all = self.random.below(all_in) == 0;
        let mut victims = if all { (0..NODES).collect() } else { BTreeSet::from([place]) };
        if self.lasting {
            victims.remove(&0);
        }
        (victims, all)
    }

    fn kill(&mut self, place: usize) -> Outcome<bool> {
        let was_running = self.processes[place].kill()?;
        self.take_lines(place)?;
        Ok(was_running)
    }

    fn kill_some(&mut self, place: usize, time: Duration) -> Outcome<&'static str> {
        let (victims, all) = self.victims(place, 8);
        for victim in victims {
            if self.kill(victim)? {
                self.schedule_undo(time, Undo::Start(victim));
            }
        }
        Ok(if all { "all killed" } else { "killed" })
    }

    fn cut_network(&mut self, place: usize, time: Duration) -> &'static str {
        let some = |random: &mut Random| match random.below(3) {
            0 => BTreeSet::from([place]),
            1 => BTreeSet::from([place, random.place()]),
            _ => (0..NODES).filter(|other| *other != place).collect(),
        };
        let (from, to) = (some(&mut self.random), BTreeSet::from([place]));
        let (cut, name) = match self.random.below(4) {
            0 => (Cut::from(to), "outgoing messages lost"),
            1 => (Cut::to(to), "incoming messages lost"),
            2 => (Cut::around(from), "cut off"),
            _ => (Cut::around(from).delayed(), "held up"),
        };
        self.proxy.cut(&cut);
        self.schedule_undo(time, Undo::Heal(cut));
        name
    }

    fn disk_fault(&mut self, kind: u64, place: usize, time: Duration) -> Outcome<&'static str> {
        Ok(match kind {
            0..2 => {
                let (victims, all) = self.victims(place, 3);
                self.cut_power(&victims)?;
                if all { "power cut of all" } else { "power cut" }
            }
            // The end of a process leaves what it has written. The next one may act on it before any disk
            // has it.
            2..5 => {
                let (victims, all) = self.victims(place, 2);
                for victim in &victims {
                    self.kill(*victim)?;
                    self.processes[*victim].start()?;
                }
                let soon = self.random.milliseconds(50, 3_000);
                self.schedule_undo(soon, Undo::CutPower(victims));
                if all { "all killed, then power cut" } else { "killed, then power cut" }
            }
            5..7 => {
                let (count, keep) = (1 + self.random.below(3), self.random.below(2) == 0);
                let Some(disk) = &self.processes[place].disk else { return Ok("no disk") };
                disk.keep_cached(keep)?;
                disk.fail_syncs(count as u32)?;
                "failed syncs"
            }
            7 => {
                let count =
                    [1 + self.random.below(20) as u32, u32::MAX][self.random.below(2) as usize];
                self.kill(place)?;
                if let Some(disk) = &self.processes[place].disk {
                    disk.fail_reads(count)?;
                }
                self.processes[place].start()?;
                self.schedule_undo(time, Undo::RepairDisk(place));
                "failed reads"
            }
            _ => {
                let which = [NoSpace::Growth, NoSpace::Writes][self.random.below(2) as usize];
                if let Some(disk) = &self.processes[place].disk {
                    disk.no_space(which)?;
                }
                self.schedule_undo(time, Undo::RepairDisk(place));
                "no space"
            }
        })
    }

    /// Cuts the power of these at once. They are started again when it is back.
    fn cut_power(&mut self, victims: &BTreeSet<usize>) -> Outcome<()> {
        for victim in victims {
            self.kill(*victim)?;
        }
        // Old content may need room.
        self.undo(Undo::MakeRoom)?;
        for victim in victims {
            if let Some(disk) = &self.processes[*victim].disk {
                let undone = disk.cut_power(&mut |end| self.random.below(end))?;
                self.undone.pages += undone.pages;
                self.undone.names += undone.names;
            }
        }
        for victim in victims {
            self.processes[*victim].start()?;
        }
        Ok(())
    }

    /// Ends all faults.
    pub(crate) fn repair(&mut self) -> Outcome<()> {
        for (_, undo) in std::mem::take(&mut self.undo) {
            self.undo(undo)?;
        }
        for place in 0..NODES {
            self.undo(Undo::RepairDisk(place))?;
            self.processes[place].start()?;
        }
        Ok(())
    }
}
