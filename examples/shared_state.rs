//! Three instances of a shop, in one process and on an in-memory cluster, share their state: order numbers, a
//! counter, configuration that they follow, the list of instances, and a sale that either all of them make or
//! none.

use quorate::recipes::{
    Config, ConfigUpdate, Counter, IdGenerator, Instance, Phase, Registry, Strategy,
    TwoPhaseCommit, Vote,
};
use quorate::testing::Cluster;
use quorate::{Result, Session};

/// One instance: it registers, sells until the configuration's limit is reached, and votes on the sale.
fn shop(session: &Session, name: &str) -> Result<()> {
    let registry = Registry::new(session, "/services")?;
    let _registered = registry.register("shop", &Instance::new(name, "127.0.0.1", 8080)).wait()?;
    let ids = IdGenerator::new(session, "/orders/ids", 100)?;
    let sold = Counter::new(session, "/orders/sold")?;
    let mut limits = Config::<i64>::new(session, "/config/limit")?.watch();
    loop {
        let limit = match limits.recv().wait()? {
            ConfigUpdate::Value(limit) => limit.value,
            // Not there yet, or in a format that this version cannot read.
            _ => continue,
        };
        if limit == 0 {
            break;
        }
        while sold.get().wait()? < limit {
            println!("{name}: order {}, {} sold", ids.next_id().wait()?, sold.add(1).wait()?);
        }
    }
    session.sync().wait()?;
    let sale = TwoPhaseCommit::new(session, "/sales/1")?.join(name).wait()?;
    println!("{name} is asked: {}", String::from_utf8_lossy(sale.proposal()));
    sale.vote(Vote::Yes).wait()?;
    println!("{name}: the sale is {:?}", sale.outcome().wait()?);
    sale.acknowledge().wait()
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let names = ["north", "south", "west"];
    let session = cluster.node(0).session();
    std::thread::scope(|scope| {
        let shops: Vec<_> = (0..3)
            .map(|place| {
                let session = cluster.node(place).session();
                scope.spawn(move || shop(&session, names[place]))
            })
            .collect();
        let discovery = Registry::new(&session, "/services")?;
        let mut there = discovery.watch("shop")?;
        while there.recv().wait()?.len() < 3 {}
        println!("{:?} are there", discovery.names().wait()?);
        let chooser = discovery.chooser("shop", Strategy::RoundRobin)?;
        println!("the first to ask: {:?}", chooser.choose().wait()?.map(|instance| instance.id));

        TwoPhaseCommit::new(&session, "/sales/1")?
            .begin(&names, b"all apples at half price?")
            .wait()?;
        let limit = Config::<i64>::new(&session, "/config/limit")?;
        limit.set(&10).wait()?;
        limit.update(|limit| limit.unwrap_or(0) + 10).wait()?;
        limit.set(&0).wait()?;
        let phase = TwoPhaseCommit::new(&session, "/sales/1")?.decide().wait()?;
        assert_eq!(phase, Phase::Committed);
        shops.into_iter().try_for_each(|shop| shop.join().expect("a shop panicked"))
    })
}
