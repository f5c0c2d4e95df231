//! Without faults, the simulated file system and the system's give the same results.

use tempfile::TempDir;

use super::*;
use crate::storage::file_system::Database;
use crate::storage::file_system::simulated::{DatabaseOptions, Random};
use crate::storage::file_system::system::SystemFiles;

fn pairs(database: &dyn Database, from: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = database.range(from).map(Result::unwrap);
    pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

#[test]
fn databases_agree() {
    for seed in 0..4 {
        let temporary = TempDir::new().unwrap();
        let device = Device::new(seed);
        // Small, so that segments are used again.
        device.set_database(DatabaseOptions { segment_bytes: 16 << 10, value_bytes_max: 4 << 10 });
        let files = device.process();
        let open = || {
            let sled = SystemFiles.open_database(temporary.path()).unwrap();
            (sled, files.open_database(path("/")).unwrap())
        };
        let (mut sled, mut model) = open();
        let mut random = Random::new(seed);
        for _ in 0..600 {
            let key = vec![random.below(40) as u8; 1 + random.index(3)];
            match random.below(20) {
                0 => {
                    drop((sled, model));
                    (sled, model) = open();
                }
                1..4 => {
                    sled.flush().unwrap();
                    model.flush().unwrap();
                }
                4..8 => {
                    sled.remove(&key).unwrap();
                    model.remove(&key).unwrap();
                }
                8 => assert_eq!(pairs(&*sled, &key), pairs(&*model, &key)),
                large => {
                    let bytes = random.index(if large == 9 { 9000 } else { 900 });
                    let value = vec![random.next() as u8; bytes];
                    sled.insert(&key, &value).unwrap();
                    model.insert(&key, &value).unwrap();
                }
            }
        }
        assert_eq!(pairs(&*sled, &[]), pairs(&*model, &[]));
    }
}
