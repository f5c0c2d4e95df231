use std::time::Duration;

use super::samples::{at, locks, members, model, sessions, silence, znode};
use super::{Clocks, Mark, Model, ReadRequest, ScreenView, Update, UserAction};

fn cells(model: &Model, now: Clocks, column: usize) -> Vec<String> {
    let rows = model.listing(now).rows.into_iter();
    rows.map(|row| row.cells.get(column).cloned().unwrap_or_default()).collect()
}

fn changes(model: &mut Model) -> Vec<String> {
    let view = std::mem::replace(&mut model.view, ScreenView::Log);
    let lines = cells(model, at(0), 1);
    model.view = view;
    lines
}

fn type_filter(model: &mut Model, filter: &str) {
    model.act(UserAction::Filter, at(1));
    filter.chars().for_each(|letter| model.act(UserAction::Type(letter), at(1)));
    model.act(UserAction::Accept, at(1));
}

#[test]
fn writes_are_counted_from_the_zxids() {
    let mut model = model();
    assert_eq!(model.writes(), Some(42));
    let plotted = |model: &Model, id: &str| model.histories[id].writes().collect::<Vec<_>>();
    assert_eq!(plotted(&model, "0000000000000001"), [None, Some(42)], "there was no value before");
    // After two seconds; one member has lost its data.
    let mut later = members(242);
    later[0].state.as_mut().unwrap().zxid = 5;
    silence(&mut later[2]);
    model.update(Update::Reports(Ok(later)), at(3));
    assert_eq!(model.writes(), Some(50));
    assert_eq!(plotted(&model, "0000000000000001").last(), Some(&None));
    assert_eq!(plotted(&model, "0000000000000003"), [None, Some(42), None], "it is silent");
    // No read came between the two, so the rate is unknown.
    model.update(Update::Reports(Ok(members(300))), at(4));
    assert_eq!(plotted(&model, "0000000000000003").last(), Some(&None));
    model.update(Update::Reports(Ok(members(300))), at(4));
    assert_eq!(model.writes(), None, "no time has passed");
    assert_eq!(model.histories["0000000000000001"].lags().next(), Some(Some(2)));
}

#[test]
fn a_history_is_bounded_and_goes_with_its_member() {
    let mut model = model();
    for second in 0..500 {
        model.update(Update::Reports(Ok(members(second))), at(second));
    }
    assert_eq!(model.histories["0000000000000002"].writes().count(), super::KEPT);
    let mut fewer = members(600);
    fewer.remove(0);
    model.update(Update::Reports(Ok(fewer)), at(600));
    assert_eq!(model.histories.len(), 2);
}

#[test]
fn changes_are_noted_once_and_with_their_time() {
    let mut founding = Model::default();
    founding.update(Update::Reports(Ok(Vec::new())), at(0));
    assert!(changes(&mut founding).is_empty(), "there is nothing to compare with yet");
    let mut model = model();
    assert_eq!(
        changes(&mut model),
        ["3 members, 0 silent; 10.0.0.2:7400 leads in term 7"],
        "the second reading was the same"
    );
    let mut silent = members(150);
    silence(&mut silent[1]);
    model.update(Update::Reports(Ok(silent.clone())), at(2));
    model.update(Update::Reports(Ok(silent.clone())), at(3));
    assert_eq!(changes(&mut model)[..2], ["no leader", "10.0.0.2:7400 is silent"]);
    silent[0].role = quorate::operate::Role::Leader;
    silent[0].state.as_mut().unwrap().term = 8;
    model.update(Update::Reports(Ok(silent)), at(4));
    assert_eq!(changes(&mut model)[..2], ["10.0.0.1:7400 leads", "term 7 -> 8"]);
    model.update(Update::Reports(Err("cut off".to_owned())), at(5));
    model.update(Update::Reports(Err("cut off".to_owned())), at(6));
    assert!(model.leader().is_none(), "nobody reports that it still leads");
    let mut back = members(160);
    back.iter_mut().for_each(|member| member.state.as_mut().unwrap().term = 9);
    back.remove(2);
    model.update(Update::Reports(Ok(back)), at(7));
    assert_eq!(
        changes(&mut model)[..6],
        [
            "10.0.0.2:7400 leads, not 10.0.0.1:7400",
            "term 8 -> 9",
            "10.0.0.2:7400 reports again",
            "10.0.0.3:7400 is a member no more (id 0000000000000003)",
            "the members report again",
            "no reports: cut off",
        ]
    );
    let mut grown = members(170);
    grown.iter_mut().for_each(|member| member.state.as_mut().unwrap().term = 9);
    grown[2].role = quorate::operate::Role::Learner;
    model.update(Update::Reports(Ok(grown)), at(8));
    let joined = "10.0.0.3:7400 is a member, a learner (id 0000000000000003)";
    assert_eq!(changes(&mut model)[0], joined);
    model.update(Update::Reports(Ok(members(170))), at(9));
    assert!(changes(&mut model).contains(&"10.0.0.3:7400 votes".to_owned()));
    model.view = ScreenView::Log;
    assert_eq!(cells(&model, at(9), 0).last().unwrap(), "12:34:56");
}

#[test]
fn a_selection_stays_with_its_row() {
    let mut model = model();
    model.act(UserAction::Move(2), at(1));
    assert_eq!(model.selected(at(1)).unwrap().key, "0000000000000003");
    let mut fewer = members(150);
    fewer.remove(0);
    model.update(Update::Reports(Ok(fewer.clone())), at(2));
    assert_eq!(model.listing(at(2)).selected, 1);
    fewer.pop();
    model.update(Update::Reports(Ok(fewer)), at(3));
    assert_eq!(model.listing(at(3)).selected, 0, "it is gone");
    model.update(Update::Reports(Ok(Vec::new())), at(4));
    assert!(model.selected(at(4)).is_none());
    for action in [
        UserAction::Move(-1),
        UserAction::Move(5),
        UserAction::First,
        UserAction::Last,
        UserAction::Open,
    ] {
        model.act(action, at(4));
    }
    model.update(Update::Reports(Ok(members(200))), at(5));
    model.act(UserAction::Last, at(5));
    assert_eq!(model.listing(at(5)).selected, 2);
    model.act(UserAction::Move(-7), at(5));
    assert_eq!(model.listing(at(5)).selected, 0);
}

#[test]
fn sessions_are_sorted_by_their_requests_or_their_renewal_on_demand() {
    let mut model = model();
    model.act(UserAction::Show(ScreenView::Sessions), at(1));
    assert_eq!(cells(&model, at(1), 1), ["10.0.0.1:7400", "10.0.0.9 of 10.0.0.3:7400"]);
    assert_eq!(model.listing(at(1)).rows[1].mark, Mark::Bad, "it is about to expire");
    model.act(UserAction::Sort, at(1));
    assert_eq!(cells(&model, at(1), 2), ["16000", "2"]);
    assert_eq!(model.listing(at(1)).header[2].title, "REQUESTS/S v");
    model.act(UserAction::Sort, at(1));
    assert_eq!(cells(&model, at(1), 5), ["9.0 s ago", "1.0 s ago"]);
    let mut unknown = sessions();
    unknown.iter_mut().for_each(|session| (session.renewed, session.watches) = (None, None));
    model.update(Update::Sessions(Ok(unknown)), at(2));
    assert_eq!(cells(&model, at(2), 5), ["?", "?"]);
    model.update(Update::Sessions(Err("cut off".to_owned())), at(9));
    assert_eq!(cells(&model, at(9), 5).len(), 2, "the last ones stay");
    assert_eq!(model.sessions.condition(at(9)).0, Some(Duration::from_secs(7)));
}

#[test]
fn a_lock_is_shown_with_holder_waiters_and_ages() {
    let mut model = model();
    model.act(UserAction::Show(ScreenView::Locks), at(1));
    assert_eq!(cells(&model, at(0), 0), ["/jobs/nightly (lock)", "  holds", "  waits"]);
    assert_eq!(cells(&model, at(0), 2), ["", "41 s", "3.0 s"]);
    assert_eq!(cells(&model, at(0), 4), ["", "10.0.0.1:7400", "10.0.0.9 of 10.0.0.3:7400"]);
    type_filter(&mut model, "10.0.0.3");
    assert_eq!(cells(&model, at(0), 0).len(), 3, "a waiter is shown with the holder");
    type_filter(&mut model, " no such");
    assert!(cells(&model, at(0), 0).is_empty());
    model.act(UserAction::Cancel, at(1));
    assert_eq!(cells(&model, at(0), 0).len(), 3);
}

#[test]
fn a_filter_belongs_to_its_view_and_can_be_corrected() {
    let mut model = model();
    type_filter(&mut model, "0.3x");
    model.act(UserAction::Erase, at(1));
    assert_eq!(cells(&model, at(1), 0), ["10.0.0.3:7400"]);
    model.act(UserAction::Beside { forward: true }, at(1));
    assert_eq!((model.view, model.filter()), (ScreenView::Sessions, ""));
    model.act(UserAction::Beside { forward: false }, at(1));
    model.act(UserAction::Beside { forward: false }, at(1));
    assert_eq!(model.view, ScreenView::Log);
    model.act(UserAction::Show(ScreenView::Members), at(1));
    assert_eq!(model.filter(), "0.3");
    (0..500).for_each(|_| model.act(UserAction::Type('x'), at(1)));
    assert!(model.filter().len() < 100);
}

#[test]
fn only_what_is_looked_at_is_read_and_only_with_a_quorum() {
    let mut model = model();
    assert_eq!(model.asks(at(60)), None, "the members are read anyway");
    model.act(UserAction::Show(ScreenView::Locks), at(60));
    assert_eq!(model.asks(at(60)), Some(ReadRequest::Locks));
    assert_eq!(model.asks(at(90)), None, "it is under way");
    let took = Duration::from_secs(10);
    model.update(Update::Locks { found: Ok(locks()), took }, at(100));
    assert_eq!(model.asks(at(139)), None, "a long walk is not done all the time");
    assert_eq!(model.asks(at(140)), Some(ReadRequest::Locks));
    model.update(Update::Locks { found: Err("it failed".to_owned()), took }, at(141));
    let mut silent = members(150);
    silent.iter_mut().skip(1).for_each(silence);
    model.update(Update::Reports(Ok(silent)), at(300));
    for view in ScreenView::ALL {
        model.act(UserAction::Show(view), at(300));
        assert_eq!(model.asks(at(300)), None, "{view:?}");
    }
}

#[test]
fn the_tree_is_read_as_it_is_walked() {
    let mut model = model();
    let ask = |list: &[&str], read: &str| ReadRequest::Tree {
        list: list.iter().map(|path| (*path).to_owned()).collect(),
        read: read.to_owned(),
    };
    let children = |path: &str, names: &[&str]| Update::Children {
        path: path.to_owned(),
        listed: Ok(names.iter().map(|name| (*name).to_owned()).collect()),
    };
    let read = |path: &str| Update::Znode { path: path.to_owned(), read: Ok(znode(b"{\"a\":1}")) };
    model.act(UserAction::Show(ScreenView::Tree), at(1));
    assert_eq!(cells(&model, at(1), 0), ["- /", "  + app", "  + jobs"]);
    assert_eq!(model.asks(at(1)), Some(ask(&["/"], "/")));
    model.update(read("/"), at(1));
    model.update(Update::TreeDone, at(1));
    assert_eq!(model.asks(at(1)), None, "it is up to date");
    model.act(UserAction::Move(1), at(1));
    assert_eq!(model.asks(at(1)), Some(ask(&[], "/app")), "at once");
    model.update(read("/app"), at(1));
    model.update(Update::TreeDone, at(1));
    assert_eq!(model.tree.data.1, ["{", "  \"a\": 1", "}"]);
    model.act(UserAction::Open, at(1));
    assert_eq!(cells(&model, at(1), 0), ["- /", "  - app  ...", "  + jobs"]);
    assert_eq!(model.asks(at(1)), Some(ask(&["/app"], "/app")));
    model.update(children("/app", &["x", "b"]), at(1));
    model.update(Update::TreeDone, at(1));
    let open = ["- /", "  - app", "    + b", "    + x", "  + jobs"];
    assert_eq!(cells(&model, at(1), 0), open);
    assert_eq!(model.asks(at(2)), Some(ask(&["/", "/app"], "/app")), "after a while");

    type_filter(&mut model, "x");
    assert_eq!(cells(&model, at(2), 0), ["- /", "  - app", "    + x"], "with what is above");
    model.act(UserAction::Cancel, at(2));
    // Left on a closed znode goes to its parent; on an open one it closes it.
    model.act(UserAction::Last, at(2));
    model.act(UserAction::Move(-1), at(2));
    assert_eq!(model.selected(at(2)).unwrap().key, "/app/x");
    model.act(UserAction::Close, at(2));
    assert_eq!(model.selected(at(2)).unwrap().key, "/app");
    model.act(UserAction::Close, at(2));
    assert_eq!(cells(&model, at(2), 0), ["- /", "  + app", "  + jobs"]);
    // The deleted znode is gone, with the open ones below it; one with a similar name stays.
    model.act(UserAction::Open, at(2));
    model.update(children("/app", &["b"]), at(2));
    model.update(children("/", &["app2"]), at(2));
    assert_eq!(cells(&model, at(2), 0), ["- /", "  + app2"]);
    model.update(children("/", &["app"]), at(3));
    assert_eq!(cells(&model, at(3), 0), ["- /", "  + app"], "closed");
    model.act(UserAction::Last, at(3));
    model.act(UserAction::Open, at(3));
    let refused = Err("access denied".to_owned());
    model.update(Update::Children { path: "/app".to_owned(), listed: refused }, at(3));
    assert_eq!(cells(&model, at(3), 0), ["- /", "  - app  (access denied)"]);
}

#[test]
fn long_lists_are_not_read_again_and_again() {
    let mut model = model();
    model.act(UserAction::Show(ScreenView::Tree), at(1));
    let names = (0..2000).map(|number| format!("n{number}")).collect();
    model.update(Update::Children { path: "/".to_owned(), listed: Ok(names) }, at(1));
    let asked = model.asks(at(60));
    assert_eq!(asked, Some(ReadRequest::Tree { list: Vec::new(), read: "/".to_owned() }));
}

#[test]
fn data_is_scrolled_to_its_last_line_and_not_beyond() {
    let mut model = model();
    model.act(UserAction::Show(ScreenView::Tree), at(1));
    let read = Ok(znode("line\n".repeat(15).as_bytes()));
    model.update(Update::Znode { path: "/".to_owned(), read }, at(1));
    model.act(UserAction::Scroll(10), at(1));
    model.act(UserAction::Scroll(10), at(1));
    assert_eq!(model.tree.scrolled, 14);
    model.act(UserAction::Scroll(-10), at(1));
    assert_eq!(model.tree.scrolled, 4);
    model.update(Update::Znode { path: "/".to_owned(), read: Ok(znode(b"short")) }, at(2));
    assert_eq!(model.tree.scrolled, 0, "there is no such line any more");
}
