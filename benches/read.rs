//! Reads from the local replica, which need no other member.

#![allow(missing_docs, reason = "what the macros make has none")]

use criterion::{Criterion, criterion_group, criterion_main};
use quorate::CreateMode;
use quorate::testing::Cluster;

fn reads(criterion: &mut Criterion) {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/bench", b"", CreateMode::Persistent).wait().unwrap();
    let calls = &session;
    let creates: Vec<_> = (0..10_000)
        .map(|n| calls.create(&format!("/bench/key-{n}"), vec![7; 100], CreateMode::Persistent))
        .collect();
    for created in creates {
        created.wait().unwrap();
    }
    let paths: Vec<String> =
        (0..10_000).map(|n| format!("/bench/key-{}", n * 7919 % 10_000)).collect();
    criterion.bench_function("get, one znode of 10,000", |bencher| {
        bencher.iter(|| session.get("/bench/key-7").wait().unwrap());
    });
    let mut next = 0;
    criterion.bench_function("get, a random one of 10,000", |bencher| {
        bencher.iter(|| {
            next = (next + 1) % paths.len();
            session.get(&paths[next]).wait().unwrap()
        });
    });
    criterion.bench_function("exists, missing", |bencher| {
        bencher.iter(|| session.exists("/bench/missing").wait().unwrap());
    });
}

criterion_group!(benches, reads);
criterion_main!(benches);
