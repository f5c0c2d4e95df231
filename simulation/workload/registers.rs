//! A few registers (znodes) that all clients read and write through linearizable operations. At the
//! end, the history is checked without any knowledge of the log.

use std::rc::Rc;

use crate::simulation::client::{Client, Handle};
use crate::simulation::kernel::Kernel;
use crate::simulation::linearizability::{Call, Known, OperationId, Return};
use crate::types::error::{Error, Result};
use crate::types::znode::{CreateMode, OpResult};

const REGISTERS: u64 = 3;

pub(crate) async fn run(client: Client) {
    client
        .in_sessions(async |handle| {
            let path = some_register(&client);
            match client.random.below(12) {
                0..2 => create(&client, handle, &path).await,
                2..4 => set(&client, handle, &path, None).await,
                4 => set(&client, handle, &path, Some(client.random.below(4))).await,
                5 => delete(&client, handle, &path, None).await,
                6 => delete(&client, handle, &path, Some(client.random.below(4))).await,
                7 => set_two(&client, handle).await,
                _ => read(&client, handle, &path).await,
            }
        })
        .await;
}

fn some_register(client: &Client) -> String {
    format!("/register-{}", client.random.below(REGISTERS))
}

fn called(kernel: &Kernel, path: &str, call: Call) -> OperationId {
    let mut checks = kernel.checks.borrow_mut();
    let now = checks.next_timestamp();
    checks.history.call(path, call, now)
}

/// Records the outcome, if the reply tells it for certain.
fn returned<T>(
    kernel: &Kernel,
    operation: &OperationId,
    result: &Result<T>,
    done: impl Fn(&T) -> Return,
) {
    let mut checks = kernel.checks.borrow_mut();
    let now = checks.next_timestamp();
    if let Some(known) = Known::of(result, done) {
        checks.history.answered(operation, known, now);
    }
}

async fn create(client: &Client, handle: &Rc<Handle>, path: &str) {
    let data = client.random.next();
    let operation = called(&client.kernel, path, Call::Create(data));
    let created = handle.create(path, &data.to_be_bytes(), CreateMode::Persistent).await;
    returned(&client.kernel, &operation, &created, |_| Return::Done);
}

async fn set(client: &Client, handle: &Rc<Handle>, path: &str, version: Option<u64>) {
    let data = client.random.next();
    let operation = called(&client.kernel, path, Call::Set(data, version));
    let stat = handle.set(path, &data.to_be_bytes(), version).await;
    returned(&client.kernel, &operation, &stat, |stat| Return::Version(stat.version));
}

async fn delete(client: &Client, handle: &Rc<Handle>, path: &str, version: Option<u64>) {
    let operation = called(&client.kernel, path, Call::Delete(version));
    let deleted = handle.delete(path, version).await;
    returned(&client.kernel, &operation, &deleted, |()| Return::Done);
}

/// Sets two registers in one multi.
async fn set_two(client: &Client, handle: &Rc<Handle>) {
    let data = client.random.next();
    let one = client.random.below(REGISTERS);
    let two = (one + 1 + client.random.below(REGISTERS - 1)) % REGISTERS;
    let paths = [one, two].map(|register| format!("/register-{register}"));
    let operations =
        paths.each_ref().map(|path| called(&client.kernel, path, Call::Set(data, None)));
    let set = handle
        .multi(|multi| paths.iter().fold(multi, |multi, path| multi.set(path, data.to_be_bytes())))
        .await;
    for (number, operation) in operations.iter().enumerate() {
        // A failed multi shows the state of one znode only: that of the operation that failed.
        let set = set.clone().map_err(|error| match error {
            Error::Multi { index, error } if index == number => *error,
            error => error,
        });
        returned(&client.kernel, operation, &set, |results| match results.get(number) {
            Some(OpResult::Set(stat)) => Return::Version(stat.version),
            // A result that is never linearizable.
            _ => Return::NodeExists,
        });
    }
}

/// A sync and a read right behind it: together, a linearizable read.
async fn read(client: &Client, handle: &Rc<Handle>, path: &str) {
    let operation = called(&client.kernel, path, Call::Read);
    let (sync, get) = (handle.sync(), handle.get(path));
    let synced = sync.await;
    let read = get.await;
    let read = synced.and(read);
    returned(&client.kernel, &operation, &read, |(data, stat)| {
        let data = <[u8; 8]>::try_from(&data[..]).map_or(u64::MAX - 1, u64::from_be_bytes);
        Return::Value(data, stat.version)
    });
}
