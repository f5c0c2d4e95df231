//! Every order of events for three peers, within bounds; and random ones for five and seven.
//!
//! The state of the whole is one number for each of the three places. The effect of an event at a
//! place depends on that place alone, so the product code computes it once for each state of a
//! place, and the test looks it up from then on. So millions of states take seconds.

use std::collections::{BTreeMap, VecDeque};

use crate::node::bootstrap::model_tests::{Announcements, Event, Place, check, check_end, fair};
use crate::planted::{Bug, plant};

/// How far an exploration goes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Whether a majority may found, from any moment on.
    majority: bool,
    /// How many instances are expected, if they discover each other, and how often their views
    /// change after the first look-up.
    discovery: Option<(usize, usize)>,
    crashes: u64,
    wipes: u64,
    /// Whether connections are lost though both ends are alive, so that an old announcement of a
    /// peer may be received. (A crash does that to all connections of a node at once.)
    losses: bool,
    /// Whether the disk is done with each write before anything else happens. (A node sends and decides
    /// nothing while its disk writes. So only crashes during a write, and announcements that come during
    /// one, are left out.)
    prompt: bool,
    /// Ballots of later rounds are not followed.
    rounds: u64,
    /// From one in so many states, the test checks that all ends well; 0: from none.
    ends: u64,
    /// The most states to explore, the nearest first.
    states: usize,
}

type PlaceId = u32;
type State = [PlaceId; 3];

#[derive(Debug, Default)]
struct Explored {
    states: u64,
    steps: u64,
    /// States of a single place.
    places: usize,
    /// How many states were checked to end well.
    ends: u64,
    /// In how many states a node has founded a cluster.
    founded: u64,
}

struct Explorer {
    bounds: Bounds,
    announcements: Announcements,
    places: Vec<Place>,
    ids: BTreeMap<String, PlaceId>,
    after: Vec<BTreeMap<Event, Option<PlaceId>>>,
}

impl Explorer {
    fn id(&mut self, place: Place) -> PlaceId {
        let next = self.places.len() as PlaceId;
        let id = *self.ids.entry(format!("{place:?}")).or_insert(next);
        if id == next {
            self.places.push(place);
            self.after.push(BTreeMap::new());
        }
        id
    }

    /// `None` also if the next state is beyond the bounds.
    fn step(&mut self, state: State, at: usize, event: Event) -> Option<State> {
        let known = self.after[state[at] as usize].get(&event).copied();
        let after = known.unwrap_or_else(|| {
            let mut place = self.places[state[at] as usize].after(event, &mut self.announcements);
            while self.bounds.prompt
                && let Some(after) = &place
                && let Some(written) = after.after(Event::Written, &mut self.announcements)
            {
                place = Some(written);
            }
            let after = place.map(|place| self.id(place));
            self.after[state[at] as usize].insert(event, after);
            after
        })?;
        if self.places[after as usize].round() > self.bounds.rounds {
            return None;
        }
        let mut next = state;
        next[at] = after;
        (next != state).then_some(next)
    }

    fn of(&self, state: State) -> [&Place; 3] {
        state.map(|id| &self.places[id as usize])
    }

    /// All that may happen at a place.
    fn events(&self, state: State, at: usize) -> Vec<Event> {
        let places = self.of(state);
        let mut events = vec![Event::Written, Event::Late];
        for (_, peer) in places.iter().enumerate().filter(|(index, _)| *index != at) {
            events.extend(peer.sent.iter().map(|announcement| Event::Receive(*announcement)));
            // Other announcements count for nothing before the peer is connected.
            let vetoes = peer
                .sent
                .iter()
                .filter(|announcement| self.announcements.of(**announcement).cluster != 0);
            events.extend(vetoes.map(|announcement| Event::ReceiveUnconnected(*announcement)));
        }
        let alive = |node| places.iter().any(|place| place.disk.id == node);
        let lost = places[at].connections().into_iter();
        events.extend(lost.filter(|node| self.bounds.losses || !alive(*node)).map(Event::Lose));
        if places.iter().map(|place| place.crashes).sum::<u64>() < self.bounds.crashes {
            events.push(Event::Crash);
        }
        if let Some((expected, views)) = self.bounds.discovery
            && (places[at].view == 0
                || places.iter().map(|place| place.views).sum::<usize>() < views)
        {
            events.extend(views_of(&places, at, expected).into_iter().map(Event::View));
        }
        // Wiping an empty disk is the same as another id from the start.
        let holds = places[at].disk.promise.ballot.round > 0;
        if holds && places.iter().map(|place| place.wipes).sum::<u64>() < self.bounds.wipes {
            events.extend([Event::Wipe { low: false }, Event::Wipe { low: true }]);
        }
        events
    }

    /// Lets everything work from this state on, and checks that it ends well.
    fn end(&mut self, mut state: State) -> Result<(), String> {
        // Enough for all ballots that it takes from the worst state.
        let bounds = std::mem::replace(&mut self.bounds.rounds, u64::MAX);
        let mut result = Err("it goes on for ever".to_owned());
        for _ in 0..60 {
            let before = state;
            for (at, event) in fair(&self.of(state), &self.announcements) {
                state = self.step(state, at, event).unwrap_or(state);
            }
            if state == before {
                result = check_end(&self.of(state));
                break;
            }
        }
        self.bounds.rounds = bounds;
        result
    }

    /// The states to begin with: with discovery, all combinations of first views.
    fn starts(&mut self) -> Vec<State> {
        let (of, majority) = (3, self.bounds.majority);
        let Some((expected, _)) = self.bounds.discovery else {
            let place = |index| Place::new(index, of, majority, &mut self.announcements);
            let places = [0, 1, 2].map(place);
            return vec![places.map(|place| self.id(place))];
        };
        let place = |index| Place::discovering(index, of, expected, &mut self.announcements);
        let unseeing = [0, 1, 2].map(place).map(|place| self.id(place));
        (0..3).fold(vec![unseeing], |starts, at| {
            let views = views_of(&self.of(unseeing), at, 1);
            let seeing = starts.into_iter().flat_map(|start| {
                let step = |view: &u32| self.step(start, at, Event::View(*view));
                views.iter().filter_map(step).collect::<Vec<State>>()
            });
            seeing.collect()
        })
    }

    /// Every state that can be reached, the nearest first, until a check fails.
    fn explore(bounds: Bounds) -> Result<Explored, String> {
        let mut explorer = Explorer {
            bounds,
            announcements: Announcements::default(),
            places: Vec::new(),
            ids: BTreeMap::new(),
            after: Vec::new(),
        };
        let starts = explorer.starts();
        let mut explored = Explored::default();
        let mut seen = Seen::default();
        starts.iter().for_each(|start| assert!(seen.add(*start), "{start:?} twice"));
        // The state from which each state was reached, and by which event.
        let begun = (0..).zip(&starts).map(|(number, start)| (*start, number, 0, Event::Late));
        let mut from: Vec<(State, u32, usize, Event)> = begun.collect();
        let mut next = 0;
        while let Some(&(state, ..)) = from.get(next)
            && next < bounds.states
        {
            let mut verdict = check(&explorer.of(state));
            let founded = |place: &Place| !place.founded.is_empty();
            explored.founded += u64::from(explorer.of(state).into_iter().any(founded));
            // A cluster may have lost most of its members with wiped disks.
            let places = explorer.of(state);
            let whole = places.iter().all(|place| place.wipes == 0)
                || !bounds.majority
                    && bounds.discovery.is_none()
                    && places.iter().all(|place| place.is_blank());
            if verdict.is_ok()
                && whole
                && bounds.ends > 0
                && (next as u64).is_multiple_of(bounds.ends)
            {
                explored.ends += 1;
                verdict = explorer.end(state);
            }
            if let Err(reason) = verdict {
                return Err(format!("{reason}\n{}", explorer.story(&from, next)));
            }
            for at in 0..3 {
                for event in explorer.events(state, at) {
                    explored.steps += 1;
                    if let Some(after) = explorer.step(state, at, event)
                        && seen.add(after)
                    {
                        from.push((after, next as u32, at, event));
                    }
                }
            }
            next += 1;
        }
        explored.states = next as u64;
        explored.places = explorer.places.len();
        Ok(explored)
    }

    /// The events that led to a state.
    fn story(&self, from: &[(State, u32, usize, Event)], mut at: usize) -> String {
        let mut lines = VecDeque::new();
        while from[at].1 as usize != at {
            let (_, before, place, event) = from[at];
            let event = match event {
                Event::Receive(announcement) | Event::ReceiveUnconnected(announcement) => {
                    let how = if event == Event::Receive(announcement) {
                        "receives"
                    } else {
                        "receives unconnected"
                    };
                    let announcement = self.announcements.of(announcement);
                    let pledge = announcement.promise.pledge.as_ref();
                    format!(
                        "{how} {}: cluster {:x}, promised {:?}, pledged {:?}",
                        announcement.member.node,
                        announcement.cluster,
                        announcement.promise.ballot,
                        pledge.map(|pledge| (pledge.ballot, pledge.genesis.cluster)),
                    )
                }
                other => format!("{other:?}"),
            };
            lines.push_front(format!(
                "{}: {event}",
                crate::node::bootstrap::model_tests::address(place)
            ));
            at = before as usize;
        }
        Vec::from(lines).join("\n")
    }
}

/// The views that a place may have: its own address, and any others that ever existed; at least
/// `least` of them.
fn views_of(places: &[&Place], at: usize, least: usize) -> Vec<u32> {
    let own = 1 << places[at].slot();
    let all = places.iter().flat_map(|place| place.slots());
    let views = all.fold(vec![0], |views: Vec<u32>, slot| {
        let with = |view: &u32| view | 1 << slot;
        views.iter().copied().chain(views.iter().map(with)).collect()
    });
    let enough = |view: &u32| view.count_ones() as usize >= least;
    views.into_iter().filter(|view| view & own != 0).filter(enough).collect()
}

/// The states that were seen, as a table with open addressing. Its order does not matter.
struct Seen {
    table: Vec<u64>,
    count: usize,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { table: vec![0; 1 << 16], count: 0 }
    }
}

impl Seen {
    /// Whether it is new.
    fn add(&mut self, state: State) -> bool {
        if 2 * self.count >= self.table.len() {
            let old = std::mem::take(&mut self.table);
            self.table = vec![0; 2 * old.len()];
            self.count = 0;
            old.into_iter().filter(|key| *key != 0).for_each(|key| {
                self.put(key);
            });
        }
        // 21 bits for each, and never 0, since the three are different.
        self.put(state.iter().fold(0, |key, id| {
            assert!(*id < 1 << 21, "a place has too many states");
            key << 21 | u64::from(*id)
        }))
    }

    fn put(&mut self, key: u64) -> bool {
        let mask = self.table.len() - 1;
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as usize & mask;
        while self.table[at] != 0 {
            if self.table[at] == key {
                return false;
            }
            at = (at + 1) & mask;
        }
        self.table[at] = key;
        self.count += 1;
        true
    }
}

/// All orders of all that can happen, without faults but for lost connections.
const PLAIN: Bounds = Bounds {
    majority: false,
    discovery: None,
    crashes: 0,
    wipes: 0,
    losses: true,
    prompt: false,
    rounds: 2,
    ends: 16,
    states: usize::MAX,
};
const MAJORITY: Bounds = Bounds { majority: true, losses: false, ..PLAIN };
const CRASHES: Bounds = Bounds { crashes: 1, losses: false, ..PLAIN };
const MAJORITY_CRASHES: Bounds = Bounds { crashes: 1, prompt: true, ..MAJORITY };
const WIPE: Bounds = Bounds { wipes: 1, losses: false, prompt: true, rounds: 3, ..PLAIN };

/// Whether long explorations run: in an optimised build, which `.ci/run` makes.
fn at_length() -> bool {
    std::env::var_os("QUORATE_EXPLORE").is_some_and(|value| value == "all")
}

fn explore_all(all: &[Bounds]) {
    for bounds in all {
        match Explorer::explore(*bounds) {
            Ok(explored) => {
                println!("{bounds:?}: {explored:?}");
                assert!(explored.founded > 50 && explored.ends > 10, "it explored nothing");
            }
            Err(story) => panic!("{bounds:?}: {story}"),
        }
    }
}

#[test]
fn three_peers_found_one_cluster_in_whatever_order() {
    explore_all(&[PLAIN, MAJORITY]);
}

#[test]
fn three_peers_found_one_cluster_with_crashes() {
    if at_length() {
        let majority = Bounds { prompt: false, ..MAJORITY_CRASHES };
        explore_all(&[Bounds { crashes: 2, losses: true, ..CRASHES }, majority]);
        explore_all(&[Bounds { crashes: 2, ..MAJORITY_CRASHES }]);
    }
}

#[test]
fn a_majority_of_three_founds_one_cluster_though_connections_are_lost() {
    if at_length() {
        explore_all(&[Bounds { losses: true, prompt: true, ..MAJORITY }]);
    }
}

#[test]
fn three_peers_found_one_cluster_though_disks_are_wiped() {
    if at_length() {
        let some = Bounds { states: 700_000, ..WIPE };
        explore_all(&[WIPE, Bounds { wipes: 2, ..some }, Bounds { crashes: 1, ..some }]);
        explore_all(&[Bounds { prompt: false, ..some }]);
    }
}

/// This need not end well: see the risk of that option. But no node may found a cluster against a
/// veto, and two clusters must never be able to act.
#[test]
fn a_majority_of_three_founds_no_second_cluster_though_a_disk_is_wiped() {
    if at_length() {
        let bounds = Bounds { majority: true, states: 1_000_000, ..WIPE };
        explore_all(&[bounds]);
    }
}

/// Each node sees any of the others, at first and later: with two expected of three, which could
/// make two different pairs, and with three expected.
#[test]
fn three_instances_that_discover_each_other_found_one_cluster() {
    let discovery = Bounds { losses: false, prompt: true, ..PLAIN };
    let pairs = Bounds { discovery: Some((2, 0)), states: 250_000, ..discovery };
    let all = Bounds { discovery: Some((3, 1)), states: 250_000, ..discovery };
    explore_all(&[pairs, all]);
    if at_length() {
        let crashes = |bounds| Bounds { crashes: 1, states: 1_500_000, ..bounds };
        let losses = Bounds { losses: true, ..pairs };
        let changes = Bounds { discovery: Some((2, 1)), states: 1_500_000, ..pairs };
        explore_all(&[crashes(pairs), crashes(all), losses, changes]);
    }
}

/// Random orders. Each node sees any part of the addresses that ever existed, and a node may come
/// back with an empty disk at another address. With four instances and three expected, one is left
/// when three have founded a cluster. With one that lost its disk there are two blank ones, which
/// are too few. Two clusters must never be able to act.
#[test]
fn instances_that_discover_each_other_and_lose_a_disk_found_one_cluster() {
    let seeds = if at_length() { 5000 } else { 300 };
    let (mut founded, mut wiped) = (0, 0);
    for seed in 0..seeds {
        let mut random = Random(seed);
        let expected = 3 + random.below(3);
        let of = [4, 4, 5][expected - 3].max(expected);
        let mut announcements = Announcements::default();
        let mut places: Vec<Place> = (0..of)
            .map(|index| Place::discovering(index, of, expected, &mut announcements))
            .collect();
        let mut crashes = random.below(4);
        let mut wipes = random.below(2);
        let mut shown: Option<u32> = None;
        for _ in 0..1500 {
            let at = random.below(of);
            let other = (at + 1 + random.below(of - 1)) % of;
            let announced: Vec<u32> = places[other].sent.iter().copied().collect();
            let event = match random.below(60) {
                0 if crashes > 0 => {
                    crashes -= 1;
                    Event::Crash
                }
                1 if wipes > 0 && places[at].disk.promise.ballot.round > 0 => {
                    wipes -= 1;
                    Event::Wipe { low: random.below(2) == 0 }
                }
                2 => {
                    let lost = places[at].connections();
                    if lost.is_empty() {
                        continue;
                    }
                    Event::Lose(lost[random.below(lost.len())])
                }
                3..=8 => {
                    // Mostly the view of other nodes, or none would found a cluster.
                    let all: Vec<&Place> = places.iter().collect();
                    let least = if random.below(8) > 0 { expected } else { 1 };
                    let views = views_of(&all, at, least);
                    let same = shown.filter(|shown| views.contains(shown));
                    let again = same.filter(|_| random.below(8) > 0);
                    let view = again.unwrap_or_else(|| views[random.below(views.len())]);
                    shown = Some(view);
                    Event::View(view)
                }
                9..=24 => Event::Written,
                25..=50 => Event::Receive(places[other].current),
                _ => Event::Receive(announced[random.below(announced.len())]),
            };
            if let Some(after) = places[at].after(event, &mut announcements) {
                places[at] = after;
            }
            let all: Vec<&Place> = places.iter().collect();
            if let Err(reason) = check(&all) {
                panic!("seed {seed}: {reason}");
            }
        }
        let has_founded = places.iter().any(|place| !place.founded.is_empty());
        founded += usize::from(has_founded);
        wiped += usize::from(has_founded && places.iter().any(|place| place.wipes > 0));
    }
    println!("{founded} of {seeds} founded, {wiped} of them with a lost disk");
    assert!(founded > seeds as usize / 10 && wiped > seeds as usize / 100, "{founded}, {wiped}");
}

#[test]
fn planted_bugs_are_found() {
    for bug in Bug::OF_FORMATION {
        let (bounds, quick) = match bug {
            Bug::TwoFounders | Bug::UnreachedAbsent => (PLAIN, true),
            Bug::VetoIgnored => (WIPE, false),
            Bug::VetoForgotten => (Bounds { majority: true, ..WIPE }, false),
            Bug::OwnPromiseIgnored => (WIPE, false),
            _ => (CRASHES, false),
        };
        if quick || at_length() {
            plant(Some(bug));
            // Found by a broken rule, not by a bad end.
            let found = Explorer::explore(Bounds { ends: 0, ..bounds });
            plant(None);
            println!("{bug:?}: {found:?}");
            assert!(found.is_err(), "{bug:?}: {found:?}");
        }
    }
}

/// Random orders with faults, for more peers. Then the faults stop, and it must end well.
#[test]
fn five_and_seven_peers_found_one_cluster() {
    let seeds = if at_length() { 1500 } else { 30 };
    let (mut founded, mut ended) = (0, 0);
    for seed in 0..seeds {
        let mut random = Random(seed);
        let of = if seed % 2 == 0 { 5 } else { 7 };
        let majority = seed % 3 != 0;
        let mut announcements = Announcements::default();
        let mut places: Vec<Place> =
            (0..of).map(|index| Place::new(index, of, majority, &mut announcements)).collect();
        let (mut crashes, mut wipes) = (random.below(6), [0, 0, 1, 2][random.below(4)]);
        for _ in 0..1000 {
            let at = random.below(of);
            let other = (at + 1 + random.below(of - 1)) % of;
            let announced: Vec<u32> = places[other].sent.iter().copied().collect();
            let event = match random.below(40) {
                0 => Event::Late,
                1 if crashes > 0 => {
                    crashes -= 1;
                    Event::Crash
                }
                2 if wipes > 0 => {
                    wipes -= 1;
                    Event::Wipe { low: random.below(2) == 0 }
                }
                3 => match places[at].connections().as_slice() {
                    [] => continue,
                    connections => Event::Lose(connections[random.below(connections.len())]),
                },
                4 => Event::ReceiveUnconnected(announced[random.below(announced.len())]),
                5..=12 => Event::Written,
                13..=16 => Event::Receive(announced[random.below(announced.len())]),
                _ => Event::Receive(places[other].current),
            };
            if let Some(after) = places[at].after(event, &mut announcements) {
                places[at] = after;
                let all: Vec<&Place> = places.iter().collect();
                check(&all).unwrap_or_else(|reason| panic!("seed {seed}: {reason}"));
            }
        }
        founded += usize::from(places.iter().any(|place| place.cluster() != 0));
        let wiped = places.iter().any(|place| place.wipes > 0);
        if wiped && (majority || !places.iter().all(Place::is_blank)) {
            continue;
        }
        for _ in 0..60 {
            let all: Vec<&Place> = places.iter().collect();
            for (at, event) in fair(&all, &announcements) {
                if let Some(after) = places[at].after(event, &mut announcements) {
                    places[at] = after;
                }
            }
        }
        let all: Vec<&Place> = places.iter().collect();
        check(&all).and_then(|()| check_end(&all)).unwrap_or_else(|reason| {
            panic!("seed {seed}: {reason}");
        });
        ended += 1;
    }
    println!("{founded} of {seeds} founded among the faults, {ended} ended well");
    assert!(founded > seeds as usize / 8 && ended > seeds as usize / 4);
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
