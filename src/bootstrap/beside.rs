//! Work that the system or another program may delay for an unknown time.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::interrupt;

/// How often the waiting thread checks whether its wait must end.
const PAUSE: Duration = Duration::from_millis(20);

/// Does work that takes the system an unknown time, on a thread that ends when the work does. This thread checks
/// meanwhile whether its wait must end.
///
/// # Errors
/// As `work`; `late` after the deadline; the kind `Interrupted` for an interrupted wait.
pub(super) fn beside<R: Send + 'static>(
    work: impl FnOnce() -> io::Result<R> + Send + 'static,
    until: Instant,
    late: impl FnOnce() -> String,
) -> io::Result<R> {
    let (tell, told) = mpsc::channel();
    let working = thread::Builder::new().name("earlybird meeting".to_owned()).spawn(move || _ = tell.send(work()))?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match told.recv_timeout(left.min(PAUSE)) {
            Ok(done) => {
                let _ = working.join();
                return done;
            }
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {
                interrupt::check(0, "join").map_err(|_| io::ErrorKind::Interrupted)?;
            }
            Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, late())),
        }
    }
}
