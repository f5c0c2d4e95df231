use std::sync::Arc;

use SessionState::{Closed, Connected, Suspended};
use loom::sync::Mutex;
use loom::thread;

use crate::every_schedule;
use crate::sync::prim::TryRecvError;
use crate::sync::states::States;
use crate::types::session::SessionState;

#[test]
fn the_last_state_is_never_lost() {
    every_schedule(|| {
        let states = Arc::new(Mutex::new(States::new(Connected, 1)));
        let reader = states.lock().unwrap().subscribe();
        let sets = Arc::clone(&states);
        let node = thread::spawn(move || {
            let mut behind = false;
            for state in [Suspended, Connected, Suspended] {
                behind = sets.lock().unwrap().set(state);
            }
            if behind { sets.lock().unwrap().catch_up() } else { false }
        });
        let mut last = None;
        let mut read = || {
            while let Ok(state) = reader.try_recv() {
                last = Some(state);
            }
        };
        read();
        let behind = node.join().unwrap();
        read();
        if behind {
            assert!(!states.lock().unwrap().catch_up(), "there is room");
            read();
        }
        assert_eq!(last, Some(Suspended));
    });
}

#[test]
fn the_final_state_always_has_room_and_is_the_last() {
    every_schedule(|| {
        let states = Arc::new(Mutex::new(States::new(Connected, 1)));
        let sets = Arc::clone(&states);
        let node = thread::spawn(move || {
            for state in [Suspended, Connected, Closed, Suspended] {
                sets.lock().unwrap().set(state);
            }
        });
        // The reader subscribes at any time.
        let reader = states.lock().unwrap().subscribe();
        let early = reader.try_recv();
        node.join().unwrap();
        let mut last = early.unwrap();
        let end = loop {
            match reader.try_recv() {
                Ok(state) => last = state,
                Err(end) => break end,
            }
        };
        assert_eq!((last, end), (Closed, TryRecvError::Disconnected));
        assert_eq!(states.lock().unwrap().now(), Closed);
    });
}

#[test]
fn a_reader_may_be_dropped_at_any_time() {
    every_schedule(|| {
        let states = Arc::new(Mutex::new(States::new(Connected, 1)));
        let (goes, stays) = {
            let mut states = states.lock().unwrap();
            (states.subscribe(), states.subscribe())
        };
        let sets = Arc::clone(&states);
        let node = thread::spawn(move || {
            sets.lock().unwrap().set(Suspended);
            sets.lock().unwrap().set(Connected);
        });
        drop(goes);
        node.join().unwrap();
        let mut last = None;
        while let Ok(state) = stays.try_recv() {
            last = Some(state);
        }
        states.lock().unwrap().catch_up();
        while let Ok(state) = stays.try_recv() {
            last = Some(state);
        }
        assert_eq!(last, Some(Connected));
        states.lock().unwrap().set(Suspended);
        assert_eq!(states.lock().unwrap().readers(), 1);
    });
}
