//! Work items that each go to one consumer, and steps that all take together: three instances in one process,
//! on an in-memory cluster.

use quorate::Result;
use quorate::recipes::{DoubleBarrier, NewItem, Queue};
use quorate::testing::Cluster;

/// Processes items until the queue is empty.
fn work(queue: &Queue, name: &str) -> Result<u32> {
    let mut done = 0;
    while let Some(item) = queue.try_take().wait()? {
        // From here on the item belongs to this instance, as long as its session lives.
        println!("{name} does {}", String::from_utf8_lossy(item.data()));
        item.done().wait()?;
        done += 1;
    }
    Ok(done)
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let producer = Queue::new(&cluster.node(0).session(), "/jobs")?.max(20);
    producer.put_all((1..=9).map(|job| format!("job {job}"))).wait()?;
    producer.put(NewItem::new("the urgent job").priority(-1)).wait()?;
    for node in 0..3 {
        // After this, the other replicas have the jobs too.
        cluster.node(node).session().sync().wait()?;
    }

    let done: u32 = std::thread::scope(|scope| {
        let instances: Vec<_> = (0..3)
            .map(|node| {
                let session = cluster.node(node).session();
                scope.spawn(move || {
                    let queue = Queue::new(&session, "/jobs")?;
                    // No instance begins before all are here.
                    let inside = DoubleBarrier::new(&session, "/phase", 3)?.enter().wait()?;
                    let done = work(&queue, &format!("instance {node}"))?;
                    // No instance goes on before all are done.
                    inside.leave().wait()?;
                    Ok(done)
                })
            })
            .collect();
        let join = |instance: std::thread::ScopedJoinHandle<'_, Result<u32>>| {
            instance.join().expect("an instance panicked")
        };
        instances.into_iter().map(join).sum::<Result<u32>>()
    })?;
    assert_eq!(done, 10);

    // When an instance dies, its unfinished item returns to the queue.
    producer.put("the last job").wait()?;
    let dying = cluster.node(1).open_session()?;
    let item = Queue::new(&dying, "/jobs")?.take().wait()?;
    cluster.expire(&dying);
    assert!(!item.is_held());
    let again = producer.take().wait()?;
    println!("instance 0 does {}, after all", String::from_utf8_lossy(again.data()));
    again.done().wait()
}
