//! The actions of keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{ScreenView, UserAction};

/// How many rows a page key scrolls.
const PAGE: isize = 10;

/// The action of a key; `None` for keys without an action.
pub(super) fn action(key: KeyEvent, is_typing: bool) -> Option<UserAction> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    let of_list = match key.code {
        KeyCode::Char('c') if is_control => Some(UserAction::Quit),
        KeyCode::Char(_) if is_control || key.modifiers.contains(KeyModifiers::ALT) => {
            return None;
        }
        KeyCode::Up => Some(UserAction::Move(-1)),
        KeyCode::Down => Some(UserAction::Move(1)),
        KeyCode::PageUp => Some(UserAction::Scroll(-PAGE)),
        KeyCode::PageDown => Some(UserAction::Scroll(PAGE)),
        KeyCode::Esc => Some(UserAction::Cancel),
        _ => None,
    };
    of_list.or_else(|| if is_typing { typed(key.code) } else { command(key.code) })
}

fn typed(code: KeyCode) -> Option<UserAction> {
    match code {
        KeyCode::Char(letter) => Some(UserAction::Type(letter)),
        KeyCode::Backspace => Some(UserAction::Erase),
        KeyCode::Enter => Some(UserAction::Accept),
        _ => None,
    }
}

fn command(code: KeyCode) -> Option<UserAction> {
    match code {
        KeyCode::Char('q') => Some(UserAction::Quit),
        KeyCode::Char('?') => Some(UserAction::Help),
        KeyCode::Char('/') => Some(UserAction::Filter),
        KeyCode::Char('s') => Some(UserAction::Sort),
        KeyCode::Char('k') => Some(UserAction::Move(-1)),
        KeyCode::Char('j') => Some(UserAction::Move(1)),
        KeyCode::Char('h') | KeyCode::Left => Some(UserAction::Close),
        KeyCode::Char('l') | KeyCode::Right | KeyCode::Enter => Some(UserAction::Open),
        KeyCode::Home => Some(UserAction::First),
        KeyCode::End => Some(UserAction::Last),
        KeyCode::Tab => Some(UserAction::Beside { forward: true }),
        KeyCode::BackTab => Some(UserAction::Beside { forward: false }),
        KeyCode::Char(digit) => {
            let place = usize::try_from(digit.to_digit(10)?).ok()?.checked_sub(1)?;
            ScreenView::ALL.get(place).copied().map(UserAction::Show)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyCode, KeyEvent, KeyModifiers, ScreenView, UserAction, action};

    #[test]
    fn letters_are_commands_unless_a_filter_is_typed() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(action(key(KeyCode::Char('q')), false), Some(UserAction::Quit));
        assert_eq!(action(key(KeyCode::Char('q')), true), Some(UserAction::Type('q')));
        assert_eq!(action(key(KeyCode::Char('5')), false), Some(UserAction::Show(ScreenView::Log)));
        for nothing in ['0', '6', '9', 'x'] {
            assert_eq!(action(key(KeyCode::Char(nothing)), false), None, "{nothing}");
        }
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        for is_typing in [false, true] {
            assert_eq!(action(control('c'), is_typing), Some(UserAction::Quit));
            assert_eq!(action(control('q'), is_typing), None);
            assert_eq!(action(key(KeyCode::Esc), is_typing), Some(UserAction::Cancel));
        }
    }
}
