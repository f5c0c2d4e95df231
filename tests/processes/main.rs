//! Members and clients as processes of their own, some of which are killed.

#[path = "../common/mod.rs"]
mod common;

mod clients;
mod descriptors;
mod detach;
mod locks;
mod members;
mod membership;
mod queues;
mod recipes;
mod state;
