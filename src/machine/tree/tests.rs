//! The tree as a data structure.

use super::*;
use crate::types::path::PATH_BYTES_MAX;

fn paths(tree: &Tree, cursor: &str) -> Vec<String> {
    tree.iter_from(cursor).map(|(path, _)| path.to_owned()).collect()
}

fn tree_of(paths: &[&str]) -> Tree {
    let mut tree = Tree::genesis();
    for path in paths {
        tree.create(path, &b""[..].into(), ZnodeKind::Persistent, None, 1, 1);
    }
    tree.check().unwrap();
    tree
}

#[test]
fn starts_with_the_reserved_znodes() {
    let tree = Tree::genesis();
    tree.check().unwrap();
    assert_eq!(paths(&tree, "/"), RESERVED);
    assert_eq!(tree.len(), 4);
    for path in RESERVED {
        let stat = tree.get(path).unwrap().stat();
        let num_children = match path {
            "/" => 1,
            "/zookeeper" => 2,
            _ => 0,
        };
        let expected = Stat { num_children, ..Stat::default() };
        assert_eq!(stat, expected);
    }
}

#[test]
fn invalid_and_missing_paths_are_not_found() {
    let tree = tree_of(&["/a"]);
    for path in ["", "a", "/a/", "//a", "/a\0", "/b", "/a/b"] {
        assert!(tree.get(path).is_none(), "{path:?}");
    }
}

#[test]
fn iterates_depth_first_with_siblings_by_name() {
    // '-' and ' ' sort before '/', but "/a-" still comes after everything below "/a".
    let tree = tree_of(&["/b", "/a-", "/a", "/a/z", "/a/b", "/a/b/c", "/a b"]);
    let all = ["/", "/a", "/a/b", "/a/b/c", "/a/z", "/a b", "/a-", "/b"];
    assert_eq!(paths(&tree, "/")[..8], all);
    assert_eq!(paths(&tree, "/a/b")[..2], ["/a/b", "/a/b/c"]);
    // A cursor without a znode: the walk begins at the next znode.
    assert_eq!(paths(&tree, "/a/c")[0], "/a/z");
    assert_eq!(paths(&tree, "/a/b/c/d/e")[0], "/a/z");
    assert_eq!(paths(&tree, "/zz").len(), 0);
}

#[test]
fn a_clone_does_not_see_later_writes() {
    let mut tree = tree_of(&["/a", "/a/b"]);
    let before = tree.clone();
    tree.set("/a", &b"new"[..].into(), 2, 2).unwrap();
    tree.delete("/a/b", 3);
    tree.create("/a/c", &b""[..].into(), ZnodeKind::Persistent, None, 4, 4);
    assert_eq!(before.get("/a").unwrap().data()[..], b""[..]);
    assert_eq!(before.get("/a").unwrap().children().collect::<Vec<_>>(), ["b"]);
    assert_eq!(tree.get("/a").unwrap().children().collect::<Vec<_>>(), ["c"]);
    before.check().unwrap();
    tree.check().unwrap();
    assert_ne!(before.hash(), tree.hash());
}

#[test]
fn data_of_any_length_is_read_back() {
    let mut tree = tree_of(&["/a", "/a/b"]);
    for length in [0, 1, 511, 512, 513, 100_000, 2] {
        let data = vec![length as u8; length];
        let stat = tree.set("/a", &data[..].into(), 2, 2).unwrap();
        assert_eq!(stat.data_length as usize, length);
        tree.create("/a/c", &b""[..].into(), ZnodeKind::Persistent, None, 3, 3);
        tree.delete("/a/c", 4);
        tree.check().unwrap();
        let znode = tree.get("/a").unwrap();
        assert_eq!((znode.data(), &*znode.shared_data()), (&data[..], &data[..]));
        assert_eq!(znode.children().collect::<Vec<_>>(), ["b"]);
    }
}

/// Creating or deleting a child changes its parent, which may have a megabyte of data.
#[test]
fn a_change_beside_long_data_does_not_copy_it() {
    let mut tree = tree_of(&["/a"]);
    tree.set("/a", &[7; 1000][..].into(), 2, 2).unwrap();
    let before = tree.get("/a").unwrap().shared_data();
    tree.create("/a/b", &b""[..].into(), ZnodeKind::Persistent, None, 3, 3);
    assert!(Arc::ptr_eq(&before, &tree.get("/a").unwrap().shared_data()));
}

#[test]
fn the_hash_returns_when_the_contents_do() {
    let mut tree = tree_of(&["/a"]);
    let hash = tree.hash();
    let fields = tree.get("/a").unwrap().fields();
    tree.set("/a", &b"x"[..].into(), 2, 2).unwrap();
    assert_ne!(tree.hash(), hash);
    tree.put("/a", b"", fields, None);
    assert_eq!(tree.hash(), hash);
}

#[test]
fn the_deepest_tree_overflows_no_stack() {
    // A thread with a small stack, so that any recursion along the path would show.
    let run = || {
        let mut tree = Tree::genesis();
        let mut path = String::new();
        while path.len() + 2 <= PATH_BYTES_MAX {
            path.push_str("/x");
            tree.create(&path, &b"d"[..].into(), ZnodeKind::Persistent, None, 1, 1);
        }
        assert_eq!(tree.len(), 4 + PATH_BYTES_MAX / 2);
        let old = tree.clone();
        tree.set(&path, &b"e"[..].into(), 2, 2).unwrap();
        tree.check().unwrap();
        drop(old);
        assert_eq!(paths(&tree, "/x").len(), PATH_BYTES_MAX / 2 + 3);
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    thread.spawn(run).unwrap().join().unwrap();
}

#[test]
fn an_excerpt_lists_the_children_of_its_znodes() {
    let content = || Some((Arc::from(&b""[..]), Stat::default()));
    let some = ["/a/b", "/a/b/c", "/a/b/c/x", "/a/b/d"].map(|path| (path.to_owned(), content()));
    let tree = Tree::excerpt(7, some);
    assert_eq!(paths(&tree, "/a/b"), ["/a/b", "/a/b/c", "/a/b/c/x", "/a/b/d"]);
    assert_eq!(tree.get("/a/b").unwrap().stat().num_children, 2);
    assert_eq!(tree.get("/a/b/c").unwrap().stat().num_children, 1);
}
