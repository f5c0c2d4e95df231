use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;

use super::super::model::samples::{at, members, model, silence, znode};
use super::super::model::{Clocks, Model, ScreenView, Update, UserAction};
use super::{Look, draw};

fn drawn(model: &Model, now: Clocks, is_colored: bool, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let look = Look { is_colored };
    let draw = |frame: &mut ratatui::Frame<'_>| {
        draw(model, now, look, frame.area(), frame.buffer_mut());
    };
    terminal.draw(draw).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(model: &Model, now: Clocks, size: (u16, u16)) -> Vec<String> {
    let buffer = drawn(model, now, true, size);
    let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..size.1).map(|y| line(y).trim_end().to_owned()).collect()
}

fn showing(view: ScreenView) -> Model {
    let mut model = model();
    model.act(UserAction::Show(view), at(1));
    model
}

#[test]
fn members_at_80_columns() {
    let shown = lines(&showing(ScreenView::Members), at(1), (80, 24));
    let expected = [
        "quorate top    1 Members  2 Sessions  3 Locks  4 Tree  5 Log",
        "leader 10.0.0.2:7400   3 members (3 vote)   42 writes/s   commits 300 µs/2.0 ms",
        "members as of 0 ms ago",
        "ADDRESS        ROLE    ZONE    LAG  STALE  DISK SYNC  SESSIONS  CLIENTS      LOG",
        "10.0.0.1:7400  voter   zone-1    2  40 ms     1.5 ms        10        0  3.0 MiB",
        "10.0.0.2:7400  leader  zone-2    1  40 ms     3.0 ms        20        0  3.0 MiB",
        "10.0.0.3:7400  voter   zone-3    0  40 ms     4.5 ms        30        0  3.0 MiB",
    ];
    assert_eq!(shown[..7], expected, "{shown:#?}");
    assert_eq!(shown[15], "10.0.0.1:7400 (id 0000000000000001)", "{shown:#?}");
    assert_eq!(shown[16], "zxid       142                        writes/s 42, at most 42");
    assert!(shown[17].ends_with('█') && shown[18].ends_with('█'), "{shown:#?}");
    assert!(shown[19].ends_with("lag 2, at most 2"), "{shown:#?}");
    assert_eq!(shown[23], "q quit  ? keys  / filter");
}

#[test]
fn members_on_a_wide_and_on_a_small_screen() {
    let wide = lines(&showing(ScreenView::Members), at(1), (120, 24));
    assert!(wide[3].ends_with("WATCHES      LOG           CHECKPOINT"), "{wide:#?}");
    assert!(wide[4].ends_with("0  3.0 MiB  12.0 MiB, 3 min ago"), "{wide:#?}");
    let small = lines(&showing(ScreenView::Members), at(1), (40, 10));
    let expected = [
        " 1 Members  2  3  4  5",
        "leader 10.0.0.2:7400   3 members (3 vote",
        "members as of 0 ms ago",
        "ADDRESS        ROLE    LAG  STALE",
        "10.0.0.1:7400  voter     2  40 ms",
        "10.0.0.2:7400  leader    1  40 ms",
        "10.0.0.3:7400  voter     0  40 ms",
        "",
        "",
        "q quit  ? keys  / filter",
    ];
    assert_eq!(small, expected);
}

#[test]
fn a_silent_leader_and_old_figures_stand_out() {
    let mut model = showing(ScreenView::Members);
    let mut silent = members(150);
    silent.iter_mut().skip(1).for_each(silence);
    model.update(Update::Reports(Ok(silent)), at(2));
    model.act(UserAction::Last, at(2));
    let shown = lines(&model, at(9), (80, 24));
    assert_eq!(shown[1], "no leader   3 members (3 vote, 2 silent)   8 writes/s");
    assert_eq!(shown[2], "members as of 7.0 s ago");
    assert!(shown[5].starts_with("10.0.0.2:7400  voter, silent    ?"), "{shown:#?}");
    assert!(shown[16].starts_with("it does not report"), "{shown:#?}");
    let colored = drawn(&model, at(9), true, (80, 24));
    for (x, y) in [(0, 1), (0, 2), (0, 5)] {
        assert_eq!(colored[(x, y)].fg, Color::Red, "{x} {y}");
    }
    let plain = drawn(&model, at(9), false, (80, 24));
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    for (view, what) in
        [(ScreenView::Locks, "locks as of 8.0 s ago"), (ScreenView::Tree, "the znode: not")]
    {
        model.act(UserAction::Show(view), at(9));
        let note = &lines(&model, at(9), (80, 24))[2];
        let expected = format!("no quorum, so nothing can be read here ({what}");
        assert!(note.starts_with(&expected), "{note}");
    }
}

#[test]
fn sessions_locks_and_changes() {
    let shown = lines(&showing(ScreenView::Sessions), at(1), (80, 24));
    assert_eq!(
        shown[3..6],
        [
            "ID                  HELD BY                    REQUESTS/S    RENEWED  EPHEMERALS",
            "0x0000000000000001  10.0.0.1:7400                       2  1.0 s ago           0",
            "0x0000000000000002  10.0.0.9 of 10.0.0.3:7400       16000  9.0 s ago           0",
        ]
    );
    let shown = lines(&showing(ScreenView::Locks), at(0), (80, 24));
    assert_eq!(
        shown[3..7],
        [
            "LOCK     SESSION               FOR  KIND  HELD BY",
            "/jobs/nightly (lock)",
            "  holds  0x0000000000000001   41 s  lock  10.0.0.1:7400",
            "  waits  0x0000000000000002  3.0 s  lock  10.0.0.9 of 10.0.0.3:7400",
        ]
    );
    let shown = lines(&showing(ScreenView::Log), at(1), (80, 24));
    let first = "12:34:56    3 members, 0 silent; 10.0.0.2:7400 leads in term 7";
    assert_eq!(shown[3..5], ["TIME (UTC)  CHANGE", first]);
}

#[test]
fn a_znode_beside_the_tree_or_below_it() {
    let mut model = showing(ScreenView::Tree);
    let read =
        |path: &str, data: &[u8]| Update::Znode { path: path.to_owned(), read: Ok(znode(data)) };
    model.update(read("/", b"{\"limit\":20}"), at(1));
    let wide = lines(&model, at(1), (80, 24));
    assert_eq!(wide[2], "the znode as of 0 ms ago   /");
    assert!(wide[3].starts_with("ZNODE") && wide[4].starts_with("- /"), "{wide:#?}");
    for expected in ["acl cdrwa=world:anyone", "JSON, 12 B", "  \"limit\": 20"] {
        assert!(wide.iter().any(|line| line.ends_with(expected)), "{expected}: {wide:#?}");
    }
    let small = lines(&model, at(1), (40, 10));
    assert_eq!(small[4..6], ["- /", "  + app"], "{small:#?}");
    assert!(small.contains(&"JSON, 12 B".to_owned()), "{small:#?}");
    // Long lines are broken, and their control characters do not reach the terminal.
    model.update(read("/", "a".repeat(60).as_bytes()), at(1));
    let broken = lines(&model, at(1), (80, 24)).concat();
    assert!(broken.matches('a').count() >= 60, "{broken}");
    model.update(read("/", b"\x1b[31mred"), at(1));
    let binary = lines(&model, at(1), (80, 24)).concat();
    assert!(!binary.contains('\x1b') && binary.contains("1b 5b 33 31"), "{binary}");
}

#[test]
fn filter_and_keys_are_shown() {
    let mut model = showing(ScreenView::Sessions);
    model.act(UserAction::Filter, at(1));
    model.act(UserAction::Type('y'), at(1));
    let shown = lines(&model, at(1), (80, 24));
    assert_eq!((shown[4].as_str(), shown[23].as_str()), ("nothing", "/y_"));
    model.act(UserAction::Accept, at(1));
    assert_eq!(lines(&model, at(1), (80, 24))[23], "only with \"y\" (Esc: all)");
    model.act(UserAction::Help, at(1));
    let help = lines(&model, at(1), (80, 24)).join("\n");
    assert!(help.contains("q Ctrl-C    quit"), "{help}");
}

#[test]
fn nothing_panics_at_any_size() {
    let mut models: Vec<Model> = ScreenView::ALL.into_iter().map(showing).collect();
    models.push(Model::default());
    models[3].update(
        Update::Znode { path: "/".to_owned(), read: Ok(znode("日本".repeat(99).as_bytes())) },
        at(1),
    );
    for model in &mut models {
        for _ in 0..2 {
            for width in 0..45 {
                for height in 0..30 {
                    let area = Rect::new(0, 0, width, height);
                    let mut buffer = Buffer::empty(area);
                    draw(model, at(9), Look { is_colored: true }, area, &mut buffer);
                }
            }
            model.act(UserAction::Help, at(1));
        }
    }
}

#[test]
fn text_that_reverses_or_hides_is_escaped() {
    let mut model = showing(ScreenView::Members);
    let mut hostile = members(150);
    hostile[0].zone = "z\u{202e}\u{1b}[2J".to_owned();
    model.update(Update::Reports(Ok(hostile)), at(2));
    let shown = lines(&model, at(2), (120, 24));
    assert!(shown[4].contains(r"  z\u{202e}\u{1b}[2J  "), "{shown:#?}");
}
