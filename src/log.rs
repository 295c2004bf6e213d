//! Where the messages of the library go in programs that collect none of `tracing` themselves: to standard error, or to what
//! another language has for them. Each names the host.
//!
//! `EARLYBIRD_LOG` chooses the least level. A program that has a collector of `tracing` keeps it.
#![forbid(unsafe_code)]

use std::fmt::{self, Write};
use std::io::IsTerminal;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

pub use tracing::Level;
pub use tracing::level_filters::LevelFilter;

use crate::config;
use crate::error::Result;
use crate::machine::host_name;

/// Writes messages to standard error, each at once and on a line of its own, from the level in the environment on, else from
/// warnings on. Later calls do nothing.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for a level that is none.
pub fn to_stderr() -> Result<()> {
    let level = config::log_level()?.unwrap_or(LevelFilter::WARN);
    let format = tracing_subscriber::fmt().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    // Where standard error cannot be written, it would be told of that there, and panic.
    let format = format.log_internal_errors(false);
    let format = format.event_format(OnHost { host: host_name(), line: Format::default() });
    // Fails where there is a collector already.
    let _ = format.with_max_level(level).finish().try_init();
    Ok(())
}

/// Gives each message to `receive`, from the level in the environment on, else from `usual` on. It is called on any thread, also
/// one that holds locks of the library, so it must return soon and must not call the library. Later calls do nothing.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for a level that is none.
pub fn to(usual: LevelFilter, receive: impl Fn(Level, String) + Send + Sync + 'static) -> Result<()> {
    let level = config::log_level()?.unwrap_or(usual);
    let receiver = Receiver { host: host_name(), receive };
    let _ = tracing_subscriber::registry().with(receiver.with_filter(level)).try_init();
    Ok(())
}

/// A line that names the host first.
struct OnHost {
    host: String,
    line: Format,
}

impl<S, N> FormatEvent<S, N> for OnHost
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        write!(to, "{} ", self.host)?;
        self.line.format_event(context, to, event)
    }
}

struct Receiver<F> {
    host: String,
    receive: F,
}

impl<S: Subscriber, F: Fn(Level, String) + 'static> Layer<S> for Receiver<F> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, fields } = text;
        (self.receive)(*event.metadata().level(), format!("{}: {message}{fields}", self.host));
    }
}

/// A message, and what is said beside it.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn messages_have_a_host_and_their_fields() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let theirs = told.clone();
        let receive = move |level, text| theirs.lock().unwrap().push((level, text));
        let receiver = Receiver { host: "node07".to_owned(), receive };
        let collector = tracing_subscriber::registry().with(receiver.with_filter(LevelFilter::INFO));
        tracing::subscriber::with_default(collector, || {
            tracing::warn!(rank = 3, device = "mlx5_0", "the port is {}", "down");
            tracing::debug!("not this");
        });
        let expected = (Level::WARN, "node07: the port is down rank=3 device=mlx5_0".to_owned());
        assert_eq!(*told.lock().unwrap(), [expected]);
    }
}
