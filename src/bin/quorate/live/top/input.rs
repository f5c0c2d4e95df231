//! The actions of keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Action, View};

/// How many rows a page key scrolls.
const PAGE: isize = 10;

/// The action of a key; `None` for keys without an action.
pub(super) fn action(key: KeyEvent, is_typing: bool) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    let of_list = match key.code {
        KeyCode::Char('c') if is_control => Some(Action::Quit),
        KeyCode::Char(_) if is_control || key.modifiers.contains(KeyModifiers::ALT) => {
            return None;
        }
        KeyCode::Up => Some(Action::Move(-1)),
        KeyCode::Down => Some(Action::Move(1)),
        KeyCode::PageUp => Some(Action::Scroll(-PAGE)),
        KeyCode::PageDown => Some(Action::Scroll(PAGE)),
        KeyCode::Esc => Some(Action::Cancel),
        _ => None,
    };
    of_list.or_else(|| if is_typing { typed(key.code) } else { command(key.code) })
}

fn typed(code: KeyCode) -> Option<Action> {
    match code {
        KeyCode::Char(letter) => Some(Action::Type(letter)),
        KeyCode::Backspace => Some(Action::Erase),
        KeyCode::Enter => Some(Action::Accept),
        _ => None,
    }
}

fn command(code: KeyCode) -> Option<Action> {
    match code {
        KeyCode::Char('q') => Some(Action::Quit),
        KeyCode::Char('?') => Some(Action::Help),
        KeyCode::Char('/') => Some(Action::Filter),
        KeyCode::Char('s') => Some(Action::Sort),
        KeyCode::Char('k') => Some(Action::Move(-1)),
        KeyCode::Char('j') => Some(Action::Move(1)),
        KeyCode::Char('h') | KeyCode::Left => Some(Action::Close),
        KeyCode::Char('l') | KeyCode::Right | KeyCode::Enter => Some(Action::Open),
        KeyCode::Home => Some(Action::First),
        KeyCode::End => Some(Action::Last),
        KeyCode::Tab => Some(Action::Beside { forward: true }),
        KeyCode::BackTab => Some(Action::Beside { forward: false }),
        KeyCode::Char(digit) => {
            let place = usize::try_from(digit.to_digit(10)?).ok()?.checked_sub(1)?;
            View::ALL.get(place).copied().map(Action::Show)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, KeyCode, KeyEvent, KeyModifiers, View, action};

    #[test]
    fn letters_are_commands_unless_a_filter_is_typed() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(action(key(KeyCode::Char('q')), false), Some(Action::Quit));
        assert_eq!(action(key(KeyCode::Char('q')), true), Some(Action::Type('q')));
        assert_eq!(action(key(KeyCode::Char('5')), false), Some(Action::Show(View::Log)));
        for nothing in ['0', '6', '9', 'x'] {
            assert_eq!(action(key(KeyCode::Char(nothing)), false), None, "{nothing}");
        }
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        for is_typing in [false, true] {
            assert_eq!(action(control('c'), is_typing), Some(Action::Quit));
            assert_eq!(action(control('q'), is_typing), None);
            assert_eq!(action(key(KeyCode::Esc), is_typing), Some(Action::Cancel));
        }
    }
}
