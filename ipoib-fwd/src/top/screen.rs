//! Takes over the terminal, and restores it however the program exits.

use std::io::{self, Stdout, stdout};
use std::mem::ManuallyDrop;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// The terminal in raw mode. Its previous contents are restored at the end.
#[derive(Debug)]
pub(super) struct Screen {
    // Its destructor does the same as `restore`, and panics if standard error is a terminal that is gone.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
}

/// Restores the terminal. Repeated calls have no effect.
fn restore() {
    // If the terminal is gone, there is nothing to restore.
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

impl Screen {
    /// Takes it.
    pub(super) fn open() -> io::Result<Self> {
        // Restore the terminal first, so that a panic message is readable.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        enable_raw_mode()?;
        let opened = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        match opened {
            Ok(terminal) => Ok(Self { terminal: ManuallyDrop::new(terminal) }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// Draws a page.
    pub(super) fn show(&mut self, draw: impl FnOnce(&mut ratatui::buffer::Buffer)) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame.buffer_mut()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}
