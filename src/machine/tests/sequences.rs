//! The numbers of sequential znodes.

use super::*;
use crate::machine::tree::Fields;

#[test]
fn sequence_numbers_count_every_create_under_the_parent() {
    // Creates of any kind count, deletes do not, and a parent made again starts at 0.
    let mut s = Script::new();
    s.make("/q", Persistent);
    assert_eq!(s.make("/q/n-", PersistentSequential), "/q/n-0000000000");
    s.make("/q/plain", Persistent);
    assert_eq!(s.make("/q/m-", EphemeralSequential), "/q/m-0000000002");
    s.op(delete("/q/m-0000000002", None)).unwrap();
    assert_eq!(s.make("/q/", PersistentSequential), "/q/0000000003");
    assert_eq!(s.make("/q/..", PersistentSequential), "/q/..0000000004");
    // Also under the root, where the system's own znode does not count.
    assert_eq!(s.make("/top", PersistentSequential), "/top0000000001");
    assert_eq!(s.make("/", PersistentSequential), "/0000000002");

    let mut s = Script::new();
    for _ in 0..2 {
        s.make("/p", Persistent);
        assert_eq!(s.make("/p/n", PersistentSequential), "/p/n0000000000");
        s.op(delete("/p/n0000000000", None)).unwrap();
        s.op(delete("/p", None)).unwrap();
    }
}

#[test]
fn a_taken_sequential_name_is_an_error_until_the_number_moves_on() {
    let mut s = Script::new();
    s.make("/q", Persistent);
    s.make("/q/n0000000001", Persistent);
    for _ in 0..2 {
        let result = s.op(create("/q/n", PersistentSequential));
        assert_eq!(result, Err(exists("/q/n0000000001")));
    }
    s.make("/q/other", Persistent);
    assert_eq!(s.make("/q/n", PersistentSequential), "/q/n0000000002");
}

#[test]
fn sequence_numbers_go_on_past_thirty_two_bits_and_past_ten_digits() {
    // ZooKeeper's numbers end at 2147483647. Every later sequential create fails with NodeExists.
    for (number, names) in [
        (2_147_483_647, ["2147483647", "2147483648"]),
        (9_999_999_999, ["9999999999", "10000000000"]),
        (u64::MAX, ["18446744073709551615", "0000000000"]),
    ] {
        let mut s = Script::new();
        let mode = PersistentSequential;
        let fields =
            Fields { creates: number, cversion: number.wrapping_mul(2), ..Fields::default() };
        s.make("/q", Persistent);
        s.machine.state.tree.put("/q", b"", fields, None);
        for name in names {
            assert_eq!(s.make("/q/n-", mode), format!("/q/n-{name}"));
        }
        let children = s.machine.tree().get("/q").unwrap().children().count();
        assert_eq!(children, 2);
    }
    // The name grows with its number, and so may become too long for a path.
    let mut s = Script::new();
    let fields = Fields { creates: 9_999_999_999, cversion: 19_999_999_998, ..Fields::default() };
    s.make("/q", Persistent);
    s.machine.state.tree.put("/q", b"", fields, None);
    let longest = format!("/q/{}", "x".repeat(PATH_BYTES_MAX - 13));
    assert_eq!(s.make(&longest, PersistentSequential).len(), PATH_BYTES_MAX);
    let result = s.op(create(&longest, PersistentSequential));
    assert!(matches!(result, Err(OpError::InvalidPath { .. })));
}

#[test]
fn a_sequential_name_is_not_given_twice() {
    let mut s = Script::new();
    s.make("/q", Persistent);
    s.make("/q/n-", PersistentSequential);
    let last = s.make("/q/n-", EphemeralSequential);
    s.op(delete(&last, None)).unwrap();
    assert_eq!(s.make("/q/n-", PersistentSequential), "/q/n-0000000002");
    // This also holds within a multi, and after one that failed.
    let next = || create("/q/n-", PersistentSequential);
    assert!(s.multi(vec![next(), delete("/none", None)]).is_err());
    s.multi(vec![next(), delete("/q/n-0000000003", None), next()]).unwrap();
    let tree = s.machine.tree();
    let names: Vec<&str> = tree.get("/q").unwrap().children().collect();
    assert_eq!(names, ["n-0000000000", "n-0000000002", "n-0000000004"]);
}
