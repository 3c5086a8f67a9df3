//! The terminal while it is ours, and given back however the program ends.

use std::io::{self, Stdout, stdout};
use std::mem::ManuallyDrop;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// The terminal: keys come as they are pressed, and what was on it comes back at the end.
#[derive(Debug)]
pub(super) struct Screen {
    // Its own end does what `restore` does, and panics where standard error is a terminal that has gone away.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
}

/// Gives the terminal back; a second time does nothing.
fn restore() {
    // A terminal that has gone away needs nothing.
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

impl Screen {
    /// Takes it.
    pub(super) fn open() -> io::Result<Self> {
        // What a panic says is to be read.
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

    /// Shows a page.
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
