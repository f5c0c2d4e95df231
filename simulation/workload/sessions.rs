//! Sessions that are closed, dropped, left to expire with their process, or resumed here or on
//! another node.

use std::rc::Rc;

use super::znodes::authenticate;
use crate::simulation::checks::require;
use crate::simulation::client::{Client, Handle};
use crate::types::znode::CreateMode;

pub(crate) async fn run(client: Client) {
    let kernel = &client.kernel;
    let mut ticket = None;
    while !kernel.is_stopping() {
        client.think().await;
        // Usually a new session, sometimes the last one, which may be over by now.
        let resume = ticket.take().filter(|_| client.random.percent(50));
        let mut here = client.clone();
        if let Some(other) = on_another_node(&client) {
            here = other;
        }
        let Ok((handle, opened)) = here.open(resume) else { continue };
        if opened.await.is_err() {
            continue;
        }
        authenticate(&here, &handle).await;
        for _ in 0..client.random.within(1..6) {
            create_ephemeral(&client, &handle).await;
            client.think().await;
        }
        ticket = Some(handle.ticket());
        if client.random.percent(20) {
            resume_with_wrong_password(&client, &handle).await;
        }
        if kernel.plan.detaches && client.random.percent(30) {
            handle.detach().await;
            continue;
        }
        match client.random.below(4) {
            0 => handle.close().await,
            1 => {
                // Resumes the session while this handle still holds it.
                let Ok((again, opened)) = client.open(ticket) else { continue };
                if opened.await.is_ok() {
                    authenticate(&client, &again).await;
                    create_ephemeral(&client, &again).await;
                    ticket = Some(again.ticket());
                }
                drop(handle);
            }
            _ => {}
        }
    }
}

/// This client on another node, as if an application moved its session there. Such a handle ends
/// when this task's process does, as if it had been dropped.
fn on_another_node(client: &Client) -> Option<Client> {
    if client.random.percent(70) {
        return None;
    }
    let coordinators = client.kernel.coordinators.borrow();
    let place = client.random.index(coordinators.len());
    let coordinator = coordinators[place].clone()?;
    Some(Client { place, coordinator, ..client.clone() })
}

/// I20: no session can be resumed without its password.
async fn resume_with_wrong_password(client: &Client, handle: &Rc<Handle>) {
    let mut ticket = handle.ticket();
    ticket.password[client.random.index(16)] ^= 1;
    let Ok((thief, opened)) = client.open(Some(ticket)) else { return };
    let opened = opened.await;
    client.kernel.check(require(opened.is_err(), "I20 a session needs its password", || {
        format!("session {} was resumed with a wrong one", thief.session().id())
    }));
}

async fn create_ephemeral(client: &Client, handle: &Rc<Handle>) {
    let path = format!("/left-{:x}-", handle.session().id().number() >> 48);
    let created = handle.create(&path, b"", CreateMode::EphemeralSequential).await;
    if client.random.percent(30)
        && let Ok(created) = created
    {
        let _ = handle.delete(&created.path, None).await;
    }
}
