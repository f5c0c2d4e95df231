//! What a member keeps on its disk: damage, faults, power cuts, and recovery from what remains.

#[path = "../common/mod.rs"]
mod common;

mod damage;
mod disk_faults;
mod full_disk;
mod power_cut;
mod recovery;
