//! All settings that come from outside the program.

mod variables;

use std::ffi::OsString;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use earlybird_ffi::rights;
use tracing::level_filters::LevelFilter;

pub use self::variables::{VARIABLES, Variable};
use crate::error::{Error, Result};
use crate::named::unknown;
use crate::time::parse_duration;
use crate::units::parse_size;

/// The transport of a world. Ranks of a world on one machine use shared memory under any choice, unless
/// [`Config::levels`] is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricChoice {
    /// Between hosts: verbs if all ranks have a device, else libfabric.
    #[default]
    Auto,
    /// Shared memory alone, for ranks on one machine.
    Shm,
    /// Between hosts: libfabric.
    Ofi,
    /// Between hosts: RDMA verbs (InfiniBand and RoCE).
    Verbs,
}

impl FabricChoice {
    /// Returns whether the user has named a network.
    pub(crate) fn names_a_network(self) -> bool {
        matches!(self, FabricChoice::Ofi | FabricChoice::Verbs)
    }
}

crate::named::named!(FabricChoice, "fabric", "auto, shm, ofi, verbs", "auto" => Auto, "shm" => Shm, "ofi" => Ofi, "verbs" => Verbs);

/// How long a rank of a world over a network waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long a rank on another machine may be silent before it counts as dead.
    pub silence: Duration,
    /// The longest time that a leaving rank still serves ranks that are behind.
    pub linger: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { silence: Duration::from_secs(10), linger: Duration::from_secs(10) }
    }
}

/// The libfabric provider of a world, and its settings.
#[derive(Clone, Debug, Default)]
pub struct OfiSettings {
    /// The provider; `None` for the best available.
    pub provider: Option<String>,
    /// The device; `None` for the provider's best.
    pub device: Option<String>,
    /// Whether all ranks are on this machine and meet at a place that no other machine reaches. If so, the rank takes
    /// an address of the same kind. A world sets this by itself.
    pub on_one_machine: bool,
    /// How long the rank waits for others.
    pub patience: Patience,
    /// Whether writes carry immediate data, where the provider can do that. Without it, the signal of a put follows
    /// only when its data has landed, which costs another round trip. `None`: yes, unless the provider is known to get
    /// stuck.
    pub cq_data: Option<bool>,
    /// Whether devices change memory for signals and atomics by themselves; otherwise the home's processor does, on
    /// request by messages. `None`: yes where devices can, which an atomic at start-up shows.
    pub device_atomics: Option<bool>,
}

/// The RDMA device of a world, and its settings. For a setting that is `None`, the section `[verbs]` of the hw-config
/// may give a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsSettings {
    /// The device, such as `mlx5_0`; `None` for the closest one with an active port.
    pub device: Option<String>,
    /// The port, from 1; `None` for the first active one.
    pub port: Option<u8>,
    /// A second device and its port (a second rail), over which every other part of large transfers goes. Either all
    /// ranks have one or none has, and each reaches the second devices of the others by it.
    pub second: Option<(String, Option<u8>)>,
    /// The index of the GID; `None` for the best one of the port.
    pub gid: Option<u8>,
    /// The traffic class of this rank's RoCE packets: four times the DSCP by which switches choose a
    /// priority; `None` for 0.
    pub traffic_class: Option<u8>,
    /// The service level of this rank's InfiniBand packets, below 16; `None` for 0.
    pub service_level: Option<u8>,
    /// How long this rank's device tries to reach a device that does not answer, accurate to a factor of 1.5; `None`
    /// for about four seconds.
    pub link_timeout: Option<Duration>,
    /// How often the device repeats a request within the link timeout, at most 6; `None` for 6.
    pub retries: Option<u8>,
    /// How long a peer's device waits before it asks again for a receive of this rank, from 10 us to 655 ms; `None` for
    /// 80 us.
    pub receiver_wait: Option<Duration>,
    /// The maximum packet size in bytes: 256, 512, 1024, 2048 or 4096; `None` for that of the port. The size of the
    /// port and that of the peer limit it.
    pub mtu: Option<u32>,
    /// The maximum number of requests in the send queue to each peer, 16 to 4096; `None` for 128.
    pub send_depth: Option<u32>,
    /// The number of receives for each peer, 2 to 1024; `None` for 16. A rank has at least 128 and at most 4096 in
    /// total.
    pub receive_depth: Option<u32>,
    /// Whether the device carries out signals and atomics by itself, without a processor of the target; otherwise the
    /// target's processor does, on request by messages. It must be the same on all ranks. `None`: yes, where the device
    /// has atomics.
    pub device_atomics: Option<bool>,
    /// Whether the device makes the bytes of a write to one cache line visible together, or in ascending order. If the
    /// devices of all ranks do, small data and the cell that announces it are one write. `None`: yes for cards, no for
    /// Soft-RoCE.
    pub ordered_writes: Option<bool>,
    /// Whether a waiting rank polls its memory at short intervals for what devices change there. Peers then send no
    /// immediate data to wake it, which would take a receive and a completion here. A wait uses most of a core, and so
    /// does the helper thread while the rank computes. Has no effect where messages change cells.
    pub memory_polling: bool,
    /// How long the rank waits for others.
    pub patience: Patience,
}

impl VerbsSettings {
    /// Returns these settings, with those of a hw-config where these have none.
    pub(crate) fn or(&self, measured: &Self) -> Self {
        VerbsSettings {
            traffic_class: self.traffic_class.or(measured.traffic_class),
            service_level: self.service_level.or(measured.service_level),
            link_timeout: self.link_timeout.or(measured.link_timeout),
            retries: self.retries.or(measured.retries),
            receiver_wait: self.receiver_wait.or(measured.receiver_wait),
            mtu: self.mtu.or(measured.mtu),
            send_depth: self.send_depth.or(measured.send_depth),
            receive_depth: self.receive_depth.or(measured.receive_depth),
            ..self.clone()
        }
    }

    /// Returns what is wrong with a value that a device cannot have.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let time =
            |range: RangeInclusive<Duration>, time: Option<Duration>| time.is_none_or(|time| range.contains(&time));
        let number =
            |range: RangeInclusive<u32>, number: Option<u32>| number.is_none_or(|number| range.contains(&number));
        let longest = Duration::from_secs(2 * 60 * 60);
        let waits = Duration::from_micros(10)..=Duration::from_micros(655_360);
        for (name, is_right, use_these) in [
            ("service_level", number(0..=15, self.service_level.map(u32::from)), "a number from 0 to 15"),
            ("link_timeout", time(Duration::from_millis(1)..=longest, self.link_timeout), "a time from 1ms to 2h"),
            (
                "retries",
                number(0..=6, self.retries.map(u32::from)),
                "a number from 0 to 6; 7 would mean without an end",
            ),
            ("receiver_wait", time(waits, self.receiver_wait), "a time from 10us to 655ms"),
            ("mtu", self.mtu.is_none_or(|mtu| [256, 512, 1024, 2048, 4096].contains(&mtu)), "256, 512, 1K, 2K or 4K"),
            ("send_depth", number(16..=4096, self.send_depth), "a number from 16 to 4096"),
            ("receive_depth", number(2..=1024, self.receive_depth), "a number from 2 to 1024"),
        ] {
            if !is_right {
                return Err(format!("{name}: use {use_these}"));
            }
        }
        Ok(())
    }
}

/// The secret of a job; the launcher or the user sets it.
const SECRET: &str = "EARLYBIRD_SECRET";

/// The level of the messages that programs print.
const LOG: &str = "EARLYBIRD_LOG";

fn level(value: &str) -> Result<LevelFilter> {
    let names = ["error", "warn", "info", "debug", "trace", "off"];
    let known = names.iter().any(|name| value.eq_ignore_ascii_case(name));
    let level = value.parse().ok().filter(|_| known);
    level.ok_or_else(|| Error::Config(format!("{LOG}={value}: {}", unknown("level", value, &names))))
}

/// Returns the level that the environment selects; `None` if it selects none.
///
/// # Errors
/// [`Error::Config`] for a value that is not a level.
#[cfg(feature = "log")]
pub(crate) fn log_level() -> Result<Option<LevelFilter>> {
    let value = std::env::var_os(LOG).filter(|value| !value.is_empty());
    value.map(|value| level(&value.into_string().map_err(|_| not_text(LOG))?)).transpose()
}

/// Variables that name files to load, read or write.
const FILES: [&str; 5] =
    ["EARLYBIRD_HW_CONFIG", "EARLYBIRD_LIBFABRIC", "EARLYBIRD_RECORD", "EARLYBIRD_REPLAY", "EARLYBIRD_TRACE"];

/// Returns whether a variable counts in this process. A variable that names a file does not count if the process has
/// more rights than the user who started it. Otherwise it would load, read or write that user's file with these rights.
pub(crate) fn counts(name: &str) -> bool {
    let is_ignored = FILES.contains(&name) && rights::are_raised();
    if is_ignored {
        tracing::warn!(
            name,
            "is ignored: this program has more rights than the user who started it (setuid, setgid or file capabilities)"
        );
    }
    !is_ignored
}

/// The numbers of levels, for error messages.
const LEVELS: &str = "use 1 or 2";

/// The values of a switch, for error messages.
const SWITCH: &str = "use auto, on or off";

/// Returns the position of a switch: `Some(None)` for automatic, `None` for an unknown word.
fn switch(value: &str) -> Option<Option<bool>> {
    match value {
        "auto" => Some(None),
        "on" => Some(Some(true)),
        "off" => Some(Some(false)),
        _ => None,
    }
}

/// Splits `mlx5_0:1` into the device and the port. Names of devices may contain a colon themselves.
fn device_and_port(value: &str) -> (String, Option<u8>) {
    let split = value.rsplit_once(':').and_then(|(device, port)| Some((device, port.parse().ok()?)));
    let (device, port) = split.map_or((value, None), |(device, port)| (device, Some(port)));
    (device.to_owned(), port)
}

/// The minimum length of a secret in bytes. A shorter secret can be guessed, or comes from a command that failed.
const LEAST_SECRET: usize = 16;

/// Checks the length of a secret. The error does not print even a short secret.
fn long_enough(secret: String) -> Result<String> {
    match secret.len() {
        LEAST_SECRET.. => Ok(secret),
        short => {
            let bytes = if short == 1 { "byte" } else { "bytes" };
            Err(Error::Config(format!(
                "{SECRET} has {short} {bytes}; use {LEAST_SECRET} or more, such as `openssl rand -hex 16` makes"
            )))
        }
    }
}

fn not_text(name: &str) -> Error {
    Error::Config(format!("{name} is not text (UTF-8); random bytes can be written as hexadecimal digits"))
}

/// How to join a world.
#[derive(Clone)]
pub struct Config {
    /// The transport.
    pub fabric: FabricChoice,
    /// 2: ranks that share the memory of a machine are a host. 1: this rank is a host of its own, and reaches all others
    /// over the network.
    pub levels: u8,
    /// The settings of libfabric.
    pub ofi: OfiSettings,
    /// The settings of RDMA verbs.
    pub verbs: VerbsSettings,
    /// The secret of this job; `None` for the launcher's `EARLYBIRD_SECRET`.
    pub secret: Option<String>,
    /// The time limit of joining, and of later set-up calls that all ranks make together.
    pub deadline: Duration,
    /// The file of measured parameters; `None` for the built-in ones.
    pub hw_config: Option<PathBuf>,
    /// The file name of a recording of the rounds of partial collectives; `None` to record nothing. Each rank writes a
    /// file for each collective, with the numbers of the collective and of the rank appended to this name. Either all
    /// ranks set it or none does; the names may differ.
    pub record: Option<PathBuf>,
    /// The recording of an earlier run that this run replays: the name that `record` had. `None` to replay nothing.
    pub replay: Option<PathBuf>,
    /// The file name of a trace of all collectives, as trace events for Perfetto or Chrome; `None` to trace nothing. Each
    /// rank writes a file, with its number appended to this name.
    pub trace: Option<PathBuf>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { fabric, levels, ofi, verbs, secret, deadline, hw_config, record, replay, trace } = self;
        // The secret is never printed.
        let secret = secret.as_ref().map(|_| "set");
        f.debug_struct("Config")
            .field("fabric", fabric)
            .field("levels", levels)
            .field("ofi", ofi)
            .field("verbs", verbs)
            .field("secret", &secret)
            .field("deadline", deadline)
            .field("hw_config", hw_config)
            .field("record", record)
            .field("replay", replay)
            .field("trace", trace)
            .finish()
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            fabric: FabricChoice::Auto,
            levels: 2,
            ofi: OfiSettings::default(),
            verbs: VerbsSettings::default(),
            secret: None,
            deadline: Duration::from_secs(60),
            hw_config: None,
            record: None,
            replay: None,
            trace: None,
        }
    }
}

impl Config {
    /// Returns the defaults, changed by the `EARLYBIRD_*` variables. An empty variable counts as unset, except for the
    /// secret: an empty secret may mean that the command that makes it failed.
    ///
    /// # Errors
    /// [`Error::Config`], which names the variable: its value is invalid, or its name begins with `EARLYBIRD_` and is
    /// unknown.
    pub fn from_env() -> Result<Self> {
        let own = |(name, value): (OsString, OsString)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("EARLYBIRD_") && counts(name))?;
            let value = value.into_string().map_err(|_| not_text(&name));
            Some(value.map(|value| (name, value)))
        };
        Self::from_vars(std::env::vars_os().filter_map(own).collect::<Result<Vec<_>>>()?.into_iter())
    }

    pub(crate) fn from_vars(vars: impl Iterator<Item = (String, String)>) -> Result<Self> {
        let mut config = Config::default();
        let is_set = |(name, value): &(String, String)| !value.is_empty() || name == SECRET;
        for (name, value) in vars.filter(|(name, _)| name.starts_with("EARLYBIRD_")).filter(is_set) {
            let bad = |problem: String| Error::Config(format!("{name}={value}: {problem}"));
            match name.as_str() {
                "EARLYBIRD_DEADLINE" => {
                    config.deadline = parse_duration(&value).map_err(|error| bad(error.to_string()))?;
                    if config.deadline.is_zero() {
                        return Err(bad("a deadline of 0 cannot be met".to_owned()));
                    }
                }
                "EARLYBIRD_RECORD" => config.record = Some(value.into()),
                "EARLYBIRD_TRACE" => config.trace = Some(value.into()),
                "EARLYBIRD_REPLAY" => config.replay = Some(value.into()),
                "EARLYBIRD_HW_CONFIG" => config.hw_config = Some(value.into()),
                "EARLYBIRD_FABRIC" => {
                    config.fabric = value.parse().map_err(|error: crate::named::UnknownName| bad(error.to_string()))?;
                }
                "EARLYBIRD_LEVELS" => {
                    config.set_levels(value.parse().unwrap_or(0)).map_err(|_| bad(LEVELS.to_owned()))?;
                }
                "EARLYBIRD_PROVIDER" => config.ofi.provider = Some(value),
                "EARLYBIRD_DEVICE" => {
                    let names: Vec<&str> = value.split(',').map(str::trim).collect();
                    let (first, second) = match names[..] {
                        [first] if !first.is_empty() => (first, None),
                        [first, second] if !first.is_empty() && !second.is_empty() => (first, Some(second)),
                        _ => return Err(bad("name a device, or two with a comma between them".to_owned())),
                    };
                    let (device, port) = device_and_port(first);
                    (config.verbs.device, config.verbs.port) = (Some(device), port);
                    // libfabric uses one device.
                    let alone = if second.is_some() { config.verbs.device.clone() } else { None };
                    config.ofi.device = alone.or(Some(first.to_owned()));
                    config.verbs.second = second.map(device_and_port);
                }
                "EARLYBIRD_GID_INDEX" => {
                    config.verbs.gid = Some(value.parse().map_err(|_| bad("use a number, from 0".to_owned()))?);
                }
                "EARLYBIRD_TRAFFIC_CLASS" => {
                    let class = value.parse().map_err(|_| bad("use a number from 0 to 255".to_owned()))?;
                    config.verbs.traffic_class = Some(class);
                }
                "EARLYBIRD_SERVICE_LEVEL" => {
                    let level = value.parse().map_err(|_| bad("use a number from 0 to 15".to_owned()))?;
                    config.verbs.service_level = Some(level);
                    config.verbs.check().map_err(bad)?;
                }
                "EARLYBIRD_LINK_TIMEOUT" => {
                    let time = parse_duration(&value).map_err(|error| bad(error.to_string()))?;
                    config.verbs.link_timeout = Some(time);
                    config.verbs.check().map_err(bad)?;
                }
                SECRET => config.secret = Some(long_enough(value)?),
                "EARLYBIRD_SILENCE" => {
                    let silence = parse_duration(&value).map_err(|error| bad(error.to_string()))?;
                    if silence < Duration::from_secs(1) {
                        return Err(bad("use 1s or more: a busy rank may be silent for a second".to_owned()));
                    }
                    config.ofi.patience.silence = silence;
                    config.verbs.patience.silence = silence;
                }
                "EARLYBIRD_CQ_DATA" => config.ofi.cq_data = switch(&value).ok_or_else(|| bad(SWITCH.to_owned()))?,
                "EARLYBIRD_DEVICE_ATOMICS" => {
                    let choice = switch(&value).ok_or_else(|| bad(SWITCH.to_owned()))?;
                    (config.ofi.device_atomics, config.verbs.device_atomics) = (choice, choice);
                }
                "EARLYBIRD_ORDERED_WRITES" => {
                    config.verbs.ordered_writes = switch(&value).ok_or_else(|| bad(SWITCH.to_owned()))?;
                }
                "EARLYBIRD_MEMORY_POLLING" => {
                    let choice = switch(&value).flatten();
                    config.verbs.memory_polling = choice.ok_or_else(|| bad("use on or off".to_owned()))?;
                }
                LOG => _ = level(&value)?,
                "EARLYBIRD_MEMORY_LIMIT" => _ = parse_size(&value).map_err(bad)?,
                _ if VARIABLES.iter().any(|variable| variable.name == name) => {}
                _ => {
                    let names = VARIABLES.map(|variable| variable.name);
                    return Err(Error::Config(unknown("variable", &name, &names)));
                }
            }
        }
        Ok(config)
    }

    /// Sets [`Config::levels`].
    ///
    /// # Errors
    /// [`Error::Config`] for a number that is neither 1 nor 2.
    pub fn set_levels(&mut self, levels: u32) -> Result<()> {
        let known = (1..=2).contains(&levels).then_some(levels as u8);
        self.levels = known.ok_or_else(|| Error::Config(format!("{levels} levels: {LEVELS}")))?;
        Ok(())
    }

    /// Returns the secret of this job. If the config has none, it comes from the launcher, like the rank's identity.
    pub(crate) fn job_secret(&self) -> Result<Option<String>> {
        match &self.secret {
            Some(secret) => long_enough(secret.clone()).map(Some),
            None => {
                let given = std::env::var_os(SECRET).map(|secret| secret.into_string().map_err(|_| not_text(SECRET)));
                given.transpose()?.map(long_enough).transpose()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, value: &str) -> Result<Config> {
        Config::from_vars([("PATH".to_owned(), "/bin".to_owned()), (name.to_owned(), value.to_owned())].into_iter())
    }

    #[test]
    fn variables_are_checked() {
        assert_eq!(config("EARLYBIRD_DEADLINE", "5s").unwrap().deadline, Duration::from_secs(5));
        for (name, value) in [
            ("EARLYBIRD_DEADLINE", "soon"),
            ("EARLYBIRD_DEADLINE", "0"),
            ("EARLYBIRD_FABRIC", "tcp"),
            ("EARLYBIRD_LEVELS", "3"),
            ("EARLYBIRD_SILENCE", "1ms"),
            ("EARLYBIRD_CQ_DATA", "no"),
            ("EARLYBIRD_GID_INDEX", "-1"),
            ("EARLYBIRD_TRAFFIC_CLASS", "256"),
            ("EARLYBIRD_SERVICE_LEVEL", "16"),
            ("EARLYBIRD_LINK_TIMEOUT", "0"),
            ("EARLYBIRD_LINK_TIMEOUT", "9000s"),
            ("EARLYBIRD_DEVICE_ATOMICS", "yes"),
            ("EARLYBIRD_ORDERED_WRITES", "yes"),
            ("EARLYBIRD_MEMORY_POLLING", "1"),
            ("EARLYBIRD_MEMORY_POLLING", "auto"),
            ("EARLYBIRD_SECRET", ""),
            ("EARLYBIRD_MEMORY_LIMIT", "lots"),
            ("EARLYBIRD_LOG", "loud"),
            ("EARLYBIRD_LOG", "3"),
        ] {
            let error = config(name, value).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        assert_eq!(config("EARLYBIRD_TRAFFIC_CLASS", "104").unwrap().verbs.traffic_class, Some(104));
        let link_timeout = config("EARLYBIRD_LINK_TIMEOUT", "30s").unwrap().verbs.link_timeout;
        assert_eq!(link_timeout, Some(Duration::from_secs(30)));
        assert_eq!(config("EARLYBIRD_SERVICE_LEVEL", "15").unwrap().verbs.service_level, Some(15));
        for (secret, named) in
            [("x", "has 1 byte; use 16 or more"), ("fifteen letters", "has 15 bytes; use 16 or more")]
        {
            let error = config("EARLYBIRD_SECRET", secret).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        config("EARLYBIRD_SECRET", "sixteen letters.").unwrap();
        let rails = config("EARLYBIRD_DEVICE", "mlx5_0,mlx5_1:2").unwrap().verbs;
        assert_eq!((rails.device.as_deref(), rails.port), (Some("mlx5_0"), None));
        assert_eq!(rails.second, Some(("mlx5_1".to_owned(), Some(2))));
        for name in ["EARLYBIRD_RECORD", "EARLYBIRD_DEVICE", "EARLYBIRD_DEADLINE", "EARLYBIRD_MEMORY_LIMIT"] {
            assert_eq!(format!("{:?}", config(name, "").unwrap()), format!("{:?}", Config::default()), "{name}");
        }
        for value in [",mlx5_0", "mlx5_0,", "a,b,c"] {
            assert!(config("EARLYBIRD_DEVICE", value).unwrap_err().to_string().contains("a comma between"), "{value}");
        }
        for (value, device, port) in [("mlx5_0:1", "mlx5_0", Some(1)), ("rxe0", "rxe0", None), ("a:b", "a:b", None)] {
            let config = config("EARLYBIRD_DEVICE", value).unwrap();
            assert_eq!((config.verbs.device.as_deref(), config.verbs.port), (Some(device), port));
            assert_eq!(config.ofi.device.as_deref(), Some(value));
        }
        let error = config("EARLYBIRD_DEADLIN", "5s").unwrap_err().to_string();
        assert!(error.contains("did you mean EARLYBIRD_DEADLINE?"), "{error}");
    }
}
