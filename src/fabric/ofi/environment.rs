//! Environment variables of libfabric's providers: which ones this library sets, and which the user
//! has set.
//!
//! `fi_info` has no attribute for any of them. `sockets` takes the size of its buffers from its
//! variable alone. `ofi_rxm` (1.17 to 2.6) configures the provider below it from its variables and
//! ignores the attributes of its own endpoints. Providers read their variables at the first call
//! into libfabric, so earlybird sets them before it loads the library.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A variable that earlybird sets to another value than libfabric's default, unless the user has
/// set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderVariable {
    /// Its name.
    pub name: &'static str,
    /// The value that earlybird sets.
    pub value: &'static str,
    /// The provider that the variable concerns, or a layer of several.
    pub provider: &'static str,
    /// libfabric's default.
    pub default: &'static str,
    /// Why earlybird sets it.
    pub reason: &'static str,
    /// Nothing but speed depends on it.
    pub is_for_speed: bool,
}

const COUNT: usize = 3;

/// All of them.
pub const PROVIDER_VARIABLES: [ProviderVariable; COUNT] = [
    ProviderVariable {
        name: "FI_SOCKETS_MAX_BUF_SZ",
        value: "4194304",
        provider: "sockets",
        default: "the kernel's",
        reason: "with the kernel's buffers large messages get stuck now and then",
        is_for_speed: false,
    },
    ProviderVariable {
        name: "FI_OFI_RXM_MSG_RX_SIZE",
        value: "32",
        provider: "ofi_rxm",
        default: "4096 if shared, else 128",
        reason: "it uses its receive buffers in turn, so fewer of them stay in a core's cache",
        is_for_speed: true,
    },
    ProviderVariable {
        name: "FI_OFI_RXM_USE_SRX",
        value: "1",
        provider: "verbs;ofi_rxm",
        default: "1 over tcp, else 0",
        reason: "unless peers share receive buffers, libfabric 1.17 may crash when one of them ends",
        is_for_speed: false,
    },
];

impl ProviderVariable {
    fn is_unset(&self) -> bool {
        std::env::var_os(self.name).is_none()
    }

    fn concerns(&self, provider: &str) -> bool {
        provider == self.provider || provider.split(';').any(|layer| layer == self.provider)
    }
}

/// Says that a variable of libfabric's own limits which providers it offers, if one does: a provider that is there may
/// seem to be missing.
#[must_use]
pub fn filter() -> Option<String> {
    let names = std::env::var_os("FI_PROVIDER").filter(|names| !names.is_empty())?;
    Some(format!("FI_PROVIDER={} is set, so libfabric may hide others", names.to_string_lossy()))
}

/// The origin of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// The user: the variable was set when this process started.
    User,
    /// This library.
    Earlybird,
    /// The variable is not set: libfabric's default holds.
    Default,
}

impl SetBy {
    /// As it is printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SetBy::User => "you",
            SetBy::Earlybird => "earlybird",
            SetBy::Default => "libfabric's default",
        }
    }
}

/// A variable and its value in this process.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The variable.
    pub variable: ProviderVariable,
    /// Its value, or libfabric's default.
    pub value: String,
    /// The origin of the value.
    pub set_by: SetBy,
}

/// The variables in force in this process, after the library has set those that it can set.
#[must_use]
pub fn provider_variables() -> Vec<InForce> {
    let value = |variable: &ProviderVariable| {
        let value = std::env::var_os(variable.name);
        value.map_or_else(|| variable.default.to_owned(), |value| value.to_string_lossy().into_owned())
    };
    let each = PROVIDER_VARIABLES.into_iter().zip(prepare());
    each.map(|(variable, set_by)| InForce { variable, value: value(&variable), set_by }).collect()
}

/// The variables that the user has not set, with earlybird's values. The launcher sets them for its
/// ranks: a rank that has several threads before it joins cannot set them itself.
pub fn variables_not_set() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROVIDER_VARIABLES.iter().filter(|it| it.is_unset()).map(|it| (it.name, it.value))
}

/// Sets, in its first call and before libfabric is loaded, the variables that the user has not set.
/// Returns the origin of each.
pub(super) fn prepare() -> [SetBy; COUNT] {
    static SET_BY: OnceLock<[SetBy; COUNT]> = OnceLock::new();
    *SET_BY.get_or_init(|| {
        let alone = has_one_thread();
        PROVIDER_VARIABLES.map(|variable| match variable.is_unset() {
            false => SetBy::User,
            true if alone => {
                // SAFETY: no other thread may read or write the environment meanwhile, by libc or
                // otherwise. There is no other thread: the kernel has just listed this one alone,
                // and only this one can start another.
                unsafe { std::env::set_var(variable.name, variable.value) };
                SetBy::Earlybird
            }
            true => SetBy::Default,
        })
    })
}

/// The variables that are a range of ports for `tcp`, the lowest and the highest one.
const PORTS: [&str; 2] = ["FI_TCP_PORT_LOW_RANGE", "FI_TCP_PORT_HIGH_RANGE"];

/// What is wrong with the range of ports that the user has chosen.
fn problem_with_ports(given: [Option<String>; 2]) -> Option<String> {
    let [low, high] = given.each_ref().map(|port| port.as_ref().and_then(|port| port.trim().parse::<u16>().ok()));
    let is_range = low.zip(high).is_some_and(|(low, high)| low <= high);
    if is_range || given.iter().all(Option::is_none) {
        return None;
    }
    let [low, high] = given.map(|port| port.unwrap_or_else(|| "not set".to_owned()));
    let [low_name, high_name] = PORTS;
    Some(format!("{low_name} is {low} and {high_name} is {high}: that is no range of ports, so libfabric takes any"))
}

/// Whether this thread is the only one of the process; false if that cannot be determined.
fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// Says, once for each variable, that a provider in use would need a value that could not be set. It is a warning where more
/// than speed depends on it.
pub(super) fn warn(rank: u32, provider: &str) {
    static WARNED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
    if let Some(warning) = warning(provider, prepare(), &WARNED, false) {
        tracing::warn!(rank, "{warning}");
    }
    if let Some(advice) = warning(provider, prepare(), &WARNED, true) {
        tracing::info!(rank, "{advice}");
    }
    static LOOKED: AtomicBool = AtomicBool::new(false);
    if provider.contains("tcp")
        && !LOOKED.swap(true, Ordering::Relaxed)
        && let Some(problem) = problem_with_ports(PORTS.map(|name| std::env::var(name).ok()))
    {
        tracing::warn!(rank, "{problem}");
    }
}

fn warning(provider: &str, set_by: [SetBy; COUNT], warned: &[AtomicBool; COUNT], is_for_speed: bool) -> Option<String> {
    let missing: Vec<String> = PROVIDER_VARIABLES
        .iter()
        .zip(set_by)
        .zip(warned)
        .filter(|((variable, _), _)| variable.is_for_speed == is_for_speed)
        .filter(|((variable, set_by), _)| *set_by == SetBy::Default && variable.concerns(provider))
        .filter(|(_, warned)| !warned.swap(true, Ordering::Relaxed))
        .map(|((variable, _), _)| format!("{}={} ({})", variable.name, variable.value, variable.reason))
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "set {} before this program starts: the provider {provider} is used, and earlybird sets variables only \
             while a process has one thread",
            missing.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned() -> [AtomicBool; COUNT] {
        [const { AtomicBool::new(false) }; COUNT]
    }

    #[test]
    fn one_warning_says_what_to_set_to_which_value() {
        let (unset, warned) = ([SetBy::Default; COUNT], warned());
        let verbs = warning("verbs;ofi_rxm", unset, &warned, false).unwrap();
        assert!(verbs.contains("FI_OFI_RXM_USE_SRX=1 (") && !verbs.contains("MSG_RX_SIZE"), "{verbs}");
        let advice = warning("tcp;ofi_rxm", unset, &warned, true).unwrap();
        assert!(advice.contains("FI_OFI_RXM_MSG_RX_SIZE=32 (") && !advice.contains("SOCKETS"), "{advice}");
        for is_for_speed in [false, true] {
            assert_eq!(warning("verbs;ofi_rxm", unset, &warned, is_for_speed), None, "it is said once");
        }
        let sockets = warning("sockets", unset, &warned, false).unwrap();
        assert!(sockets.contains("FI_SOCKETS_MAX_BUF_SZ=4194304 ("), "{sockets}");
    }

    #[test]
    fn half_a_range_of_ports_is_none() {
        let problem = |low: &str, high: &str| {
            problem_with_ports([low, high].map(|port| Some(port.to_owned()).filter(|port| !port.is_empty())))
        };
        for (low, high) in [("", ""), ("31000", "31999"), ("31000", "31000")] {
            assert_eq!(problem(low, high), None);
        }
        for (low, high) in [("31000", ""), ("", "31999"), ("31999", "31000"), ("abc", "31999"), ("70000", "71000")] {
            let problem = problem(low, high).unwrap();
            assert!(problem.contains("no range of ports") && problem.contains("FI_TCP_PORT_LOW_RANGE"), "{problem}");
        }
    }

    #[test]
    fn nothing_is_said_of_what_does_not_matter_or_is_set() {
        assert_eq!(warning("udp;ofi_rxd", [SetBy::Default; COUNT], &warned(), true), None);
        for set_by in [SetBy::User, SetBy::Earlybird] {
            assert_eq!(warning("sockets", [set_by; COUNT], &warned(), false), None);
        }
        let tcp = warning("tcp;ofi_rxm", [SetBy::Default; COUNT], &warned(), true).unwrap();
        assert!(tcp.contains("MSG_RX_SIZE=32") && !tcp.contains("USE_SRX"), "tcp shares them anyway: {tcp}");
    }

    /// Tests run in threads of their own, beside the one that started them.
    #[test]
    fn variables_are_left_alone_beside_other_threads() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!has_one_thread());
                for InForce { variable, set_by, .. } in provider_variables() {
                    let is_set = std::env::var_os(variable.name).is_some();
                    assert_eq!(set_by, if is_set { SetBy::User } else { SetBy::Default }, "{}", variable.name);
                }
            });
        });
    }
}
