//! A proxy for the instances' connections, which can cut them.
//!
//! Each instance advertises an address of the proxy, which forwards every connection. A connection
//! carries messages in one direction, from the instance that opened it. That instance names itself
//! in the hello at the start.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::processes::Address;
use crate::{NODES, Outcome};

/// The senders and the receivers of the messages that a fault blocks.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    links: BTreeSet<(usize, usize)>,
    /// Connections stay open, and messages are delayed instead of lost.
    delayed: bool,
}

impl Cut {
    fn new(is_cut: impl Fn(usize, usize) -> bool) -> Cut {
        let all = (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to)));
        Cut { links: all.filter(|(from, to)| is_cut(*from, *to)).collect(), delayed: false }
    }

    /// Blocks all messages from these instances.
    pub(crate) fn from(these: BTreeSet<usize>) -> Cut {
        Cut::new(|from, _| these.contains(&from))
    }

    /// Blocks all messages to these instances.
    pub(crate) fn to(these: BTreeSet<usize>) -> Cut {
        Cut::new(|_, to| these.contains(&to))
    }

    /// Blocks both.
    pub(crate) fn around(these: BTreeSet<usize>) -> Cut {
        Cut::new(|from, to| these.contains(&from) != these.contains(&to))
    }

    pub(crate) fn delayed(self) -> Cut {
        Cut { delayed: true, ..self }
    }
}

#[derive(Default)]
struct State {
    /// The number of cuts of each link: those that close connections, and those that delay
    /// messages.
    closed: BTreeMap<(usize, usize), usize>,
    delayed: BTreeMap<(usize, usize), usize>,
    /// The connections of each link.
    streams: BTreeMap<(usize, usize), Vec<TcpStream>>,
    /// The instance behind each id, learned from the receivers in other instances' hellos.
    names: BTreeMap<u64, usize>,
}

#[derive(Clone)]
pub(crate) struct Proxy(Arc<(Mutex<State>, Condvar)>);

impl Proxy {
    pub(crate) fn start(addresses: &[Address]) -> Outcome<Proxy> {
        let proxy = Proxy(Arc::default());
        for (place, address) in addresses.iter().enumerate() {
            let listener = TcpListener::bind(&address.advertised)?;
            let (proxy, target) = (proxy.clone(), address.listened.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let (proxy, target) = (proxy.clone(), target.clone());
                    std::thread::spawn(move || proxy.serve(stream, place, &target));
                }
            });
        }
        Ok(proxy)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cut(&self, cut: &Cut) {
        let mut state = self.state();
        for link in &cut.links {
            let cuts = if cut.delayed { &mut state.delayed } else { &mut state.closed };
            *cuts.entry(*link).or_default() += 1;
            if !cut.delayed {
                for stream in state.streams.remove(link).unwrap_or_default() {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        }
        self.0.1.notify_all();
    }

    pub(crate) fn heal(&self, cut: &Cut) {
        let mut state = self.state();
        for link in &cut.links {
            let cuts = if cut.delayed { &mut state.delayed } else { &mut state.closed };
            if let Some(count) = cuts.get_mut(link) {
                *count = count.saturating_sub(1);
            }
        }
        self.0.1.notify_all();
    }

    /// Forwards a connection to an instance until one end closes or it is cut.
    fn serve(&self, mut one: TcpStream, to: usize, target: &str) -> Option<()> {
        let mut hello = [0; 512];
        let length = one.read(&mut hello).ok()?;
        let (from_name, to_name) = parse_hello(&hello[..length])?;
        let from = {
            let mut state = self.state();
            state.names.insert(to_name, to);
            // An instance whose id is not known yet cannot be cut off yet.
            *state.names.get(&from_name).unwrap_or(&usize::MAX)
        };
        if self.is_closed((from, to)) {
            return None;
        }
        let mut two = TcpStream::connect(target).ok()?;
        let _ = (one.set_nodelay(true), two.set_nodelay(true));
        two.write_all(&hello[..length]).ok()?;
        let (one_too, two_too) = (one.try_clone().ok()?, two.try_clone().ok()?);
        {
            let mut state = self.state();
            let streams = state.streams.entry((from, to)).or_default();
            streams.extend([one.try_clone().ok()?, two.try_clone().ok()?]);
        }
        let back = self.clone();
        std::thread::spawn(move || back.copy(two_too, one_too, (from, to)));
        self.copy(one, two, (from, to));
        Some(())
    }

    fn is_closed(&self, link: (usize, usize)) -> bool {
        self.state().closed.get(&link).is_some_and(|cuts| *cuts > 0)
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, link: (usize, usize)) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let mut state = self.state();
            while state.delayed.get(&link).is_some_and(|cuts| *cuts > 0) {
                state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            if self.is_closed(link) || to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

/// The sender and the receiver in a hello. After the frame's header of 12 bytes and 10 bytes of
/// magic and version, there are three numbers of up to ten bytes with seven bits in each: the
/// cluster, the sender and the receiver.
fn parse_hello(frame: &[u8]) -> Option<(u64, u64)> {
    let mut rest = frame.get(22..)?.iter();
    let mut number = || {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = rest.next()?;
            value |= u64::from(byte & 127).checked_shl(shift)?;
            if byte & 128 == 0 {
                return Some(value);
            }
        }
        None
    };
    let (_cluster, from, to) = (number()?, number()?, number()?);
    Some((from, to))
}
