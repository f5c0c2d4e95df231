//! Against a plain model that keeps every state of every file: what is read, and what power cuts leave.

use std::collections::BTreeMap;

use super::*;
use crate::storage::file_system::simulated::{Fault, FaultKind, Random};

const SECTOR: usize = 512;
const PAGE: usize = 4096;
const NAMES: [&str; 3] = ["/one", "/two", "/three"];

/// All states of a file since its last sync, the oldest first.
struct History {
    states: Vec<Vec<u8>>,
    /// The pages that a failed sync has lost, and nobody has written since.
    lost: Vec<usize>,
}

impl History {
    fn visible(&self) -> &Vec<u8> {
        self.states.last().unwrap()
    }

    fn sector(state: &[u8], number: usize) -> Vec<u8> {
        let start = (number * SECTOR).min(state.len());
        let mut sector = state[start..state.len().min(start + SECTOR)].to_vec();
        sector.resize(SECTOR, 0);
        sector
    }

    /// Checks that a power cut may have left this.
    fn check(&self, left: &[u8]) {
        let longest = self.states.iter().map(Vec::len).max().unwrap();
        assert!(
            self.states.iter().any(|state| state.len() == left.len())
                // A write may have grown the file by some of its pages.
                || left.len().is_multiple_of(PAGE) && left.len() < longest,
            "{} bytes",
            left.len()
        );
        for number in 0..left.len().div_ceil(SECTOR) {
            let found = Self::sector(left, number);
            let end = left.len() - number * SECTOR;
            let is_state = self.states.iter().any(|state| {
                Self::sector(state, number)[..end.min(SECTOR)] == found[..end.min(SECTOR)]
            });
            assert!(is_state, "sector {number}");
        }
    }
}

#[test]
fn power_cuts_leave_states_between_the_last_sync_and_now() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut device = Device::new(seed);
        let mut model: BTreeMap<&str, History> = BTreeMap::new();
        let mut files = device.process();
        for name in NAMES {
            make(&files, name, b"");
            model.insert(name, History { states: vec![Vec::new()], lost: Vec::new() });
        }
        for step in 0..120 {
            let name = *random.pick(&NAMES).unwrap();
            let history = model.get_mut(name).unwrap();
            let file = files.open(path(name), Access::Write).unwrap();
            match random.below(12) {
                0..6 => {
                    let at = random.index(3 * PAGE);
                    let bytes = vec![step as u8 + 1; 1 + random.index(2 * PAGE)];
                    file.write_at(&bytes, at as u64).unwrap();
                    let mut state = history.visible().clone();
                    state.resize(state.len().max(at + bytes.len()), 0);
                    state[at..at + bytes.len()].copy_from_slice(&bytes);
                    history.states.push(state);
                    let written = at / PAGE..(at + bytes.len()).div_ceil(PAGE);
                    history.lost.retain(|page| !written.contains(page));
                }
                6 => {
                    let length = random.index(4 * PAGE);
                    file.set_length(length as u64).unwrap();
                    let mut state = history.visible().clone();
                    state.resize(length, 0);
                    history.states.push(state);
                }
                7..9 => {
                    file.sync_data().unwrap();
                    let visible = history.visible().clone();
                    // Sectors of lost pages may still be older.
                    if history.lost.is_empty() {
                        history.states.clear();
                    }
                    history.states.push(visible);
                }
                9 if step > 60 => {
                    device.inject(Fault::next(FaultKind::FailedSync));
                    file.sync_data().unwrap_err();
                    let pages = history.visible().len().div_ceil(PAGE);
                    history.lost = (0..pages).collect();
                }
                10 => device.write_back_some(),
                _ => {
                    // One of many cuts is the one that happens.
                    for cut in 0..10 {
                        let copy = device.copy(random.next());
                        copy.cut_power();
                        let after = copy.process();
                        for (name, history) in &mut model {
                            let left = content(&after, name);
                            history.check(&left);
                            if cut == 9 {
                                *history = History { states: vec![left], lost: Vec::new() };
                            }
                        }
                        if cut == 9 {
                            files = after;
                            device = copy;
                        }
                    }
                    continue;
                }
            }
            assert_eq!(&read(&*file), model[name].visible(), "seed {seed} step {step}");
        }
    }
}
